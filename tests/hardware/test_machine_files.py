"""Is a written machine description read back as the same machine, and found by the name `this`?"""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moesaic.core.errors import BadMachine, UnknownName
from moesaic.hardware.machine_reader import (
    known_machines,
    load_machine,
    machine_file,
    parse_machine,
)
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.hardware.machine_writer import machine_toml, save_machine
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics
from moesaic.model_info.model_zoo import load_model

REFERENCE = load_machine("h200-emr16")
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)


def read(text: str) -> MachineSpec:
    return parse_machine(text.encode(), "written")


def with_link(**changes: Any) -> MachineSpec:
    return replace(REFERENCE, pcie=replace(REFERENCE.pcie, **changes))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"


@pytest.mark.parametrize("name", known_machines())
def test_a_packaged_machine_is_written_as_it_is_packaged(name: str) -> None:
    packaged = (files("moesaic.hardware") / "data" / f"{name}.toml").read_text()
    without_comment = packaged.partition("\n")[2]
    assert machine_toml(load_machine(name)) == without_comment


@given(
    title=TEXTS,
    notes=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=3),
    source=TEXTS,
    bandwidth=st.floats(1e-4, 1e6),
    rates=st.dictionaries(st.sampled_from(["fp16", "fp32"]), st.floats(1e-5, 1e6)),
)
def test_any_machine_is_read_back_equal(
    title: str, notes: list[str], source: str, bandwidth: float, rates: dict[str, float]
) -> None:
    gpu = replace(REFERENCE.gpu, name=title, matmul_tflops={**REFERENCE.gpu.matmul_tflops, **rates})
    spec = replace(with_link(bandwidth_gb_s=bandwidth), title=title, notes=tuple(notes), gpu=gpu)
    spec = replace(spec, sources=dict.fromkeys(spec.values(), source))
    assert read(machine_toml(spec)) == spec


def test_what_toml_must_escape_survives() -> None:
    hard = 'quote " backslash \\ tab \t newline \n return \r\n delete \x7f bell \x07 µ 漢 🙂'
    spec = replace(REFERENCE, title=hard)
    assert read(machine_toml(spec)).title == hard


def test_numbers_of_numpy_and_whole_numbers_are_written_plainly() -> None:
    cores: Any = np.int64(7)
    spec = with_link(bandwidth_gb_s=np.float64(12.5), latency_us=3)
    spec = replace(spec, cpu=replace(spec.cpu, cores=cores))
    text = machine_toml(spec)
    assert read(text) == spec
    assert "cores = { value = 7, " in text
    assert "bandwidth_gb_s = { value = 12.5, " in text


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (with_link(bandwidth_gb_s=float("inf")), "pcie.bandwidth_gb_s"),
        (replace(REFERENCE, title=" "), "title"),
        (replace(REFERENCE, sources={**REFERENCE.sources, "cpu.cores": ""}), "cpu.cores.source"),
    ],
    ids=["infinite", "no title", "no source"],
)
def test_what_could_not_be_read_is_not_written(
    spec: MachineSpec, field: str, tmp_path: Path
) -> None:
    path = tmp_path / "machine.toml"
    path.write_text("the last good one")
    with pytest.raises(BadMachine) as caught:
        save_machine(spec, path)
    assert caught.value.field == field
    assert path.read_text() == "the last good one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_number_without_its_source_is_our_own_mistake() -> None:
    fewer = {key: text for key, text in REFERENCE.sources.items() if key != "pcie.latency_us"}
    with pytest.raises(AssertionError, match=r"pcie\.latency_us"):
        machine_toml(replace(REFERENCE, sources=fewer))


def test_a_saved_machine_is_this_one(home: Path) -> None:
    mine = replace(with_link(bandwidth_gb_s=7.0), name="my-desk")
    save_machine(mine, machine_file())
    assert load_machine("this") == load_machine("This") == mine
    assert machine_file() == home / "moesaic" / "machine.toml"


def test_an_unmeasured_machine_says_what_to_run(home: Path) -> None:
    with pytest.raises(BadMachine, match="run `moesaic profile` first") as caught:
        load_machine("this")
    assert str(home) in str(caught.value)
    with pytest.raises(UnknownName, match="Did you mean 'this'"):
        load_machine("thiss")


def test_the_file_is_under_the_home_folder_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for unset in ("", None):
        if unset is None:
            monkeypatch.delenv("XDG_CONFIG_HOME")
        else:
            monkeypatch.setenv("XDG_CONFIG_HOME", unset)
        assert machine_file() == tmp_path / ".config" / "moesaic" / "machine.toml"


# What `moesaic profile` adds to a description: times over the roofline by token count, fixed
# costs of a GPU, the advised system. Are they read, refused and charged?

PLAIN, MODEL = load_machine("h200-emr16"), load_model("olmoe-1b-7b")


def measured() -> MachineSpec:
    gpu = replace(
        PLAIN.gpu,
        expert_factor={"bf16-1": 1.0, "bf16-4": 3.0, "int4-2": 9.0},
        once_us={"launch": 16.0, "step": 250.0},
    )
    spec = replace(PLAIN, gpu=gpu, system="moesaic-lru")
    return replace(spec, sources=dict.fromkeys(spec.values(), "measured"))


def test_a_measured_description_reads_back() -> None:
    text = machine_toml(measured())
    assert parse_machine(text.encode(), "mine") == measured()
    assert "once_us" not in machine_toml(PLAIN)
    assert "system" not in machine_toml(PLAIN).splitlines()[3]


@pytest.mark.parametrize(
    ("before", "after", "field"),
    [
        ("bf16-4 =", "bf16-four =", "expected a weight precision and a number of tokens"),
        ("bf16-4 =", "bf16-04 =", "expected a weight precision and a number of tokens"),
        ("bf16-4 =", "bf17-4 =", "expected a weight precision and a number of tokens"),
        ("launch =", "lunch =", "unknown field; expected one of launch, step"),
        ('system = "moesaic-lru"', 'system = ""', "expected a text"),
    ],
)
def test_what_it_cannot_mean_is_refused(before: str, after: str, field: str) -> None:
    text = machine_toml(measured())
    assert before in text
    with pytest.raises(BadMachine, match=field):
        parse_machine(text.replace(before, after, 1).encode(), "mine")


def test_factors_lie_on_straight_lines() -> None:
    plain, with_factors = Physics(PLAIN, MODEL), Physics(measured(), MODEL)
    overhead = round(PLAIN.gpu.expert_overhead_us * 1000)
    for tokens, factor in ((1, 1.0), (2, 5 / 3), (4, 3.0), (64, 3.0)):
        usual = plain.expert_ns("gpu", tokens) - overhead
        assert with_factors.expert_ns("gpu", tokens) - overhead == pytest.approx(
            usual * factor, abs=1
        )
    assert with_factors.expert_ns("cpu", 4) == plain.expert_ns("cpu", 4)


def test_a_launch_is_charged_once_per_layer_and_shared_by_its_experts() -> None:
    """16 us over eight experts: two for each, as a real machine measures them."""
    physics = Physics(measured(), MODEL)
    assert physics.first_ns("gpu") == 16_000
    assert physics.probed_ns("gpu", 1) - physics.expert_ns("gpu", 1) == 2_000
    machine = SimMachine(physics, slots=8)
    assert machine.probe("gpu", 1, 3) == 3 * physics.probed_ns("gpu", 1)


def test_a_step_costs_more_than_its_layers() -> None:
    plain, with_step = (Physics(spec, MODEL).head_ns(1) for spec in (PLAIN, measured()))
    assert with_step - plain == 250_000
