"""Where no policies are named on a described machine, does the system run that simulation found
fastest there, with the reason said; and is nothing simulated for that unasked?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import SMALL, refused, run, run_json

from moesaic.hardware.machine_reader import known_machines, load_machine
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.hardware.machine_writer import save_machine
from moesaic.lab.profile import advised_system, choose_system
from moesaic.lab.profile.advised_system import (
    advice_for,
    can_be_advised,
    find_advice,
    fingerprint,
    packaged,
)
from moesaic.lab.simulate.workload import SYNTHETIC
from moesaic.policies.systems import EVERY_SYSTEM

ADVISABLE = [name for name in known_machines() if can_be_advised(load_machine(name))]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setattr(advised_system, "writable_cache", lambda: folder)
    return folder


def other(machine: str = "rtx3090-r9-5950x", gb_s: float = 12.0) -> MachineSpec:
    """A machine that the package does not know."""
    known = load_machine(machine)
    return replace(known, name="my-desk", pcie=replace(known.pcie, bandwidth_gb_s=gb_s))


def policies_line(said: str) -> str:
    (line,) = (each for each in said.splitlines() if each.startswith("policies: "))
    return line


def chosen(monkeypatch: pytest.MonkeyPatch, system: str) -> list[str]:
    """Simulation is replaced; returns the machines that were asked about."""
    asked: list[str] = []

    def choose(spec: MachineSpec, **_: Any) -> choose_system.Choice:
        asked.append(spec.name)
        return choose_system.Choice(system, "reasons", (), {})

    monkeypatch.setattr(choose_system, "choose_system", choose)
    return asked


@pytest.mark.parametrize("name", ADVISABLE)
def test_the_packaged_advice_is_current(name: str) -> None:
    """A changed description or candidate needs `python -m benchmarks.advised_systems` again."""
    spec = load_machine(name)
    stored = packaged()[fingerprint(spec)]
    assert stored["machine"] == name
    found = advice_for(spec)
    assert found is not None
    assert found.system in EVERY_SYSTEM
    assert found.because.startswith("simulated decode of ")


def test_nothing_else_is_stored() -> None:
    assert {each["machine"] for each in packaged().values()} == set(ADVISABLE)
    assert "trimoe-paper" not in ADVISABLE


def test_advice_belongs_to_numbers_not_to_names() -> None:
    known = load_machine("rtx3090-r9-5950x")
    renamed = replace(known, name="mine", title="Mine", notes=("words",), description="words")
    assert advice_for(renamed) == advice_for(known) is not None
    assert advice_for(other()) is None
    tables = {**known.gpu.matmul_tflops}
    reordered = replace(known.gpu, matmul_tflops=dict(reversed(tables.items())))
    assert fingerprint(replace(known, gpu=reordered)) == fingerprint(known)


def test_what_a_description_says_comes_first() -> None:
    spec = replace(load_machine("h200-emr16"), system="moesaic-lru")
    assert advice_for(spec) == ("moesaic-lru", "its description says so")
    noted = replace(spec, notes=("Default system: moesaic-lru (1.10 x (far) others).",))
    assert advice_for(noted) == ("moesaic-lru", "1.10 x (far) others")
    assert advice_for(replace(other(), system="of-a-plugin-that-is-gone")) is None


def test_found_advice_is_kept_and_a_damaged_file_is_not_believed(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen(monkeypatch, "hybrimoe")
    assert find_advice(other()) == ("hybrimoe", "reasons")
    assert advice_for(other()) == ("hybrimoe", "reasons")
    assert advice_for(other(gb_s=13.0)) is None
    (file,) = (cache / "advice").iterdir()
    for damaged in ("{", "[]", json.dumps({fingerprint(other()): {"system": "none"}})):
        file.write_text(damaged)
        assert advice_for(other()) is None


def test_simulate_says_which_system_runs_and_why() -> None:
    words = ("simulate", *SMALL, "--machine", "rtx4090-2x6454s")
    found = advice_for(load_machine("rtx4090-2x6454s"))
    assert found is not None
    first = policies_line(run(*words).err)
    assert first == f"policies: {found.system}, advised for rtx4090-2x6454s by {found.because}"
    policies = run_json(*words)["policies"]
    assert policies == EVERY_SYSTEM[found.system].policies.as_dict("decode")
    for named in (("--policies", "fiddler"), ("--cache", "lru"), ("--batch", 2)):
        assert "advised" not in run(*words, *named).err


def test_a_described_machine_gets_what_was_found_for_it(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, file = chosen(monkeypatch, "ktransformers"), tmp_path / "my.toml"
    spec = other()
    save_machine(spec, file)
    words = ("simulate", *SMALL, "--machine", file)
    first = policies_line(run(*words).err)
    assert first == (
        "policies: moesaic; no systems were compared on my-desk; "
        f"`moesaic machines {file} --advise` does"
    )
    assert asked == [], "nothing is simulated unasked"
    monkeypatch.setattr(choose_system, "cases_for", lambda spec: [])
    assert "Default system: ktransformers (reasons)." in run("machines", file, "--advise").out
    assert asked == ["my-desk"]
    assert "\npolicies: ktransformers, advised for my-desk by reasons" in run(*words).err
    advised = run_json("machines", file)["advised"]
    assert advised == {"system": "ktransformers", "because": "reasons"}
    changed = policies_line(run(*words, "--set", "pcie.gb_s=20").err)
    assert changed.startswith("policies: moesaic; no systems were compared on my-desk with pcie")
    planned = run("plan", "olmoe-1b-7b", "--machine", file).err.splitlines()
    assert "policies: ktransformers, advised for my-desk by reasons" in planned
    assert asked == ["my-desk"]


def test_advising_is_for_one_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "name it" in refused(monkeypatch, capsys, "machines", "--advise")
    words = ("machines", "h200-emr16", "--advise", "--toml")
    assert "leave --toml" in refused(monkeypatch, capsys, *words)


def test_both_kinds_of_routing_count_the_same() -> None:
    kinds = [SYNTHETIC, SYNTHETIC, "recorded"]
    speeds: dict[str, tuple[float, ...]] = {
        "moesaic": (100.0, 100.0, 150.0),
        "ktransformers": (110.0, 110.0, 100.0),
    }
    choice = choose_system.decided("m", ("a", "b", "c"), speeds, kinds)
    assert choice.system == "moesaic"
    assert "1.17 x ktransformers" in choice.because  # sqrt(1.5 / 1.1)
    slower = {**speeds, "moesaic": (100.0, 100.0, 95.0)}
    assert choose_system.decided("m", ("a", "b", "c"), slower, kinds).system == "ktransformers"


def test_cases_fit_the_machine() -> None:
    small = choose_system.cases_for(load_machine("rtx5070-r7-9700x"))
    assert {case.ratio for case in small} == {0.25, 0.5, 0.75}
    assert {case.routing == SYNTHETIC for case in small} == {True, False}
    unified = choose_system.cases_for(load_machine("dgx-spark"))
    assert {case.ratio for case in unified} == {1.0}
