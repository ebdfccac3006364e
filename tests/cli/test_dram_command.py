"""Does `moesaic dram` report what the library computes, and refuse what it cannot serve?"""

from __future__ import annotations

from pathlib import Path

import pytest
from command import refused, run, run_json

from moesaic.machines.sim.dram.named_patterns import named_pattern
from moesaic.machines.sim.dram.simulate import simulate
from moesaic.machines.sim.dram.timing_file import load_timing


def test_one_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("R 0 0 0 5 0\n")
    found = run_json("dram", "--timing", "ddr5-4800-trimoe", "--pattern", path, "--in-flight", 1)
    assert found["cycles"] == 83
    assert found["bandwidth_gb_s"] == pytest.approx(64 / 83 * 2.4)
    assert found["latency_nck"] == 83
    assert found["hit_rate"] == 0


@pytest.mark.parametrize("refresh", [True, False])
def test_a_named_pattern_gives_what_the_library_gives(refresh: bool) -> None:
    flag = "--refresh" if refresh else "--no-refresh"
    words = ("--pattern", "random-ranks", "--requests", 3000, "--seed", 4, "--in-flight", 20, flag)
    found = run_json("dram", "--timing", "ddr4-3200", "--ranks", 3, "--write-share", 0.2, *words)
    timing = load_timing("ddr4-3200").with_ranks(3)
    made = named_pattern("random-ranks", timing.geometry, 3000, seed=4, write_share=0.2)
    expected = simulate(timing, made, 20, refresh=refresh)
    assert found.items() >= expected.as_dict().items()
    assert (found["requests"], found["ranks"], found["refresh"]) == (3000, 3, refresh)


def test_a_person_reads_a_table() -> None:
    out = run("dram", "--requests", 2000).out
    for words in ("DDR5-4800", "GB/s", "of 19.2", "row hits", "with refresh"):
        assert words in out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--timing", "ddr6"), "Known: ddr4-3200, ddr5-4800-trimoe, ddr5-5600"),
        (("--pattern", "streams"), "Did you mean 'stream'?"),
        (("--pattern", "no/such.txt"), "no/such.txt: No such file"),
        (("--in-flight", 0), "0 requests in flight"),
        (("--requests", 0), "0 requests: expected 1 or more"),
        (("--ranks", 0), "ranks: expected a whole number of 1 or more"),
        (("--write-share", 1.5), "a share of 1.5 writes"),
    ],
)
def test_mistakes(
    words: tuple[object, ...],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert complaint in refused(monkeypatch, capsys, "dram", *words)


def test_a_wrong_line_and_an_option_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.txt"
    path.write_text("R 0 0 0 0 0\nR 0 9 0 0 0\n")
    said = refused(monkeypatch, capsys, "dram", "--pattern", path)
    assert f"{path}:2: bg is 9, expected 0 to 7" in said
    said = refused(monkeypatch, capsys, "dram", "--pattern", path, "--seed", 1)
    assert "--seed: for named patterns" in said
