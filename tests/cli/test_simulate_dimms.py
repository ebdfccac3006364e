"""Can machines whose DIMMs compute be simulated, shown, and refused with a reason?"""

from __future__ import annotations

from pathlib import Path

import pytest
from command import SMALL, refused, run, run_json

MODEL = ("--model", "deepseek-v2-lite")


@pytest.mark.parametrize("machine", ["trimoe-paper", "h200-emr16-ndp"])
def test_gpu_and_cpu_schedules_run_and_leave_the_units_alone(machine: str) -> None:
    result = run_json("simulate", "--machine", machine, *MODEL, *SMALL, "--check", "--json")
    busy = result["utilization"]
    assert {busy[f"ndp{at}"] for at in range(16)} == {0.0}
    assert busy["cpu"] > 0
    assert busy["pcie"] > 0
    assert result["floor_ratio"] >= 1


def test_a_file_with_other_numbers_is_simulated(tmp_path: Path) -> None:
    """Without sharing, CPU and PCIe have the channels to themselves: never slower."""
    text = run("machines", "trimoe-paper", "--toml").out
    means = []
    for sharing in ("pcie-first", "none"):
        mine = tmp_path / f"{sharing}.toml"
        mine.write_text(text.replace('sharing = "pcie-first"', f'sharing = "{sharing}"'))
        how = ("--machine", mine, *MODEL, *SMALL, "--batch", 16, "--json")
        means.append(run_json("simulate", *how)["latency_s"]["mean"])
    assert means[1] < means[0]


def test_many_lanes_are_one_entry_of_the_summary() -> None:
    shown = " ".join(run("simulate", "--machine", "trimoe-paper", *MODEL, *SMALL).out.split())
    assert "ndp0 to ndp15 0% (0% to 0%)" in shown.replace("│ │ │ ", "")
    assert "dimm-link0-1 to" in shown
    assert "ndp7" not in shown


def test_rules_are_shown_in_words() -> None:
    shown = run("machines", "trimoe-paper").out
    assert "16 DIMMs on 8 channels" in shown
    assert "Contention own-share: a host read occupies a DIMM while" in shown
    assert "256 GFLOP/s and 140.9 GB/s each" in shown
    assert "DIMM-Link per-dimm" in shown


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "count = { value = 16",
            "count = { value = 12",
            "dimms.count: expected a multiple of the 8",
        ),
        (
            '"own-share"',
            '"half"',
            "dimms.contention: expected one of full, own-share, none, not 'half'",
        ),
        ("channel_gb_s = { value = 38.4", "channel_gb_s = { value = -1", "dimms.channel_gb_s"),
        ("memory_gb = { value = 128.0", "memory_gb = { value = 0.5", "has 8 GB of main memory"),
    ],
)
def test_a_machine_that_cannot_exist_is_one_message(
    old: str,
    new: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = run("machines", "trimoe-paper", "--toml").out
    assert old in text
    (tmp_path / "mine.toml").write_text(text.replace(old, new, 1))
    monkeypatch.chdir(tmp_path)
    said = refused(monkeypatch, capsys, "simulate", "--machine", "mine.toml", *MODEL, *SMALL)
    assert message in " ".join(said.split())


def test_weights_that_units_cannot_multiply_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    how = ("--machine", "trimoe-paper", *MODEL, *SMALL, "--expert-dtype", "int4")
    said = refused(monkeypatch, capsys, "simulate", *how)
    assert "cannot multiply int4 weights, only bf16: use --expert-dtype bf16" in said
