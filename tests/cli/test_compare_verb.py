"""Does `moesaic compare` put every combination in its place, and say why one is missing?"""

from __future__ import annotations

from pathlib import Path

import pytest
from command import SMALL, refused, run, run_json

from moesaic.policies.systems import SYSTEMS

ALONE = ("--jobs", 1)


def test_rows_are_systems_in_order_with_speedups_over_ktransformers() -> None:
    rows = run_json("compare", *SMALL, *ALONE)
    assert [row["system"] for row in rows] == list(SYSTEMS)
    base = next(row for row in rows if row["system"] == "ktransformers")
    for row in rows:
        ratio = base["latency_s"]["mean"] / row["latency_s"]["mean"]
        assert row["speedup"] == pytest.approx(ratio)
        assert row["baseline"] == "ktransformers"
        assert row["command"].startswith("moesaic compare --tokens 8")


def test_a_row_is_what_simulate_says() -> None:
    row = run_json("compare", *SMALL, *ALONE, "--systems", "hybrimoe")[0]
    alone = run_json("simulate", *SMALL, "--system", "hybrimoe")
    assert all(row[key] == alone[key] for key in alone if key not in ("wall_s", "command"))


def test_processes_change_nothing() -> None:
    words = ("compare", *SMALL, "--systems", "ktransformers,hybrimoe")
    apart, together = (run_json(*words, "--jobs", jobs) for jobs in (2, 1))
    keys = ("system", "latency_s", "hit_rate", "bytes_moved", "speedup")
    assert [[row[k] for k in keys] for row in apart] == [[row[k] for k in keys] for row in together]


def test_grid_of_policies_ratios_and_machines() -> None:
    rows = run_json(
        "compare", *SMALL, *ALONE, "--schedules", "hybrid,static-experts", "--caches", "lru",
        "--prefetches", "none", "--cache-ratios", "0.25,0.5", "--machines",
        "a6000-xeon5220r,h200-emr16",
    )  # fmt: skip
    places = [(row["machine"], row["cache_ratio"], row["system"]) for row in rows]
    assert places == [
        (machine, ratio, f"{schedule}+lru+none")
        for machine in ("a6000-xeon5220r", "h200-emr16")
        for ratio in (0.25, 0.5)
        for schedule in ("hybrid", "static-experts")
    ]
    assert {row["baseline"] for row in rows} == {"hybrid+lru+none"}


def test_machines_are_called_what_they_call_themselves(tmp_path: Path) -> None:
    mine, twin = tmp_path / "my.toml", tmp_path / "twin.toml"
    text = run("machines", "a6000-xeon5220r", "--toml").out
    mine.write_text(text.replace('"a6000-xeon5220r"', '"under-my-desk"', 1))
    twin.write_text(text)
    machines = f"{mine},a6000-xeon5220r,{twin}"
    words = ("compare", *SMALL, *ALONE, "--systems", "adapmoe,fiddler", "--machines", machines)
    rows = run_json(*words, "--cache-ratios", 0)
    expected = ["under-my-desk", "a6000-xeon5220r", f"a6000-xeon5220r ({twin})"]
    assert [row["machine"] for row in rows] == [name for name in expected for _ in range(2)]
    assert "on under-my-desk" in run(*words).out


def test_impossible_combinations_are_skipped_with_the_reason() -> None:
    words = ("compare", *SMALL, *ALONE, "--cache-ratios", "0", "--systems", "adapmoe,fiddler")
    skipped, done = run_json(*words)
    assert "leaves no GPU slot" in skipped["skipped"]
    assert "latency_s" not in skipped
    assert "latency_s" in done
    shown = run(*words).out
    assert "Skipped" in shown
    assert "adapmoe at 0%" in shown


def test_table_and_plot(tmp_path: Path) -> None:
    plot = tmp_path / "compare.png"
    shown = run("compare", *SMALL, *ALONE, "--cache-ratios", "0,0.25", "--plot", plot)
    assert all(name in shown.out for name in SYSTEMS)
    assert "1.00" in shown.out
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert plot.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--systems", "hybrimoe,fidler"), "Did you mean 'fiddler'?"),
        (("--schedules", "hybird"), "Did you mean 'hybrid'?"),
        (("--machines", "h200-emr"), "Did you mean 'h200-emr16'?"),
        (("--baseline", "adapmo"), "Did you mean 'adapmoe'?"),
        (("--cache-ratios", "a quarter"), "expected numbers between 0 and 1"),
        (("--cache-ratios", "2"), "none of these can run"),
        (("--cache-ratios", ","), "at least one"),
        (("--machines", ""), "at least one"),
        (("--jobs", "0"), "at least 1"),
        (("--plot", "absent/out.png"), "there is no directory"),
    ],
)
def test_a_mistake_is_one_line(
    words: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert message in refused(monkeypatch, capsys, "compare", *SMALL, *words)
