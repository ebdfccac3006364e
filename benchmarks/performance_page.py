"""docs/performance.md from results: tables between marks, with the commands under each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.marked_page import put, table
from benchmarks.performance_cpu_tables import cpu, cpu_floor, cpu_olmoe, kernels
from benchmarks.performance_cuda_tables import cuda, fidelity, gates
from benchmarks.performance_results import Results
from benchmarks.performance_two_cores import cpu_two

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
RESULTS = Path(__file__).with_name("results")  # of runs, which the page shows
RUNS = "runs"  # mark of the table of machines
RENDERED: Mapping[str, Callable[[Results], Iterator[str]]] = {
    "cpu": cpu, "cpu-two": cpu_two, "cpu-floor": cpu_floor, "cpu-olmoe": cpu_olmoe,
    "kernels": kernels, "cuda": cuda, "cuda-gates": gates, "fidelity": fidelity,
}  # fmt: skip
NOTHING = "Not measured yet: `python -m benchmarks.performance run --only {}` does."


def rendered(page: str, results: Results) -> str:
    """The page with every region as the results have it; text around them stays."""
    page = put(page, RUNS, _runs(results))
    for section, tables in RENDERED.items():
        parts = [*tables(results), *_commands(results, section), *_problems(results, section)]
        page = put(page, section, "\n\n".join(parts) or NOTHING.format(section))
    return page


def _runs(results: Results) -> str:
    """Every machine once, with its runs, and a table of the runs."""
    if not results.runs:
        return NOTHING.format("SECTION,...")
    machines: dict[str, list[str]] = {}
    for number, run in enumerate(results.runs, 1):
        machines.setdefault(_machine(run), []).append(str(number))
    named = [
        f"- {'All runs' if len(machines) == 1 else 'Runs ' + ', '.join(runs)}: {machine}"
        for machine, runs in machines.items()
    ]
    head = ("run", "date", "commit", "memory streamed, GB/s")
    return "\n".join([*named, "", table(head, _run_rows(results))])


def _run_rows(results: Results) -> Iterator[list[str]]:
    for number, run in enumerate(results.runs, 1):
        streamed = (run.get("machine") or {}).get("stream_gb_s", "?")
        yield [str(number), str(run["date"]), str(run.get("commit") or "unknown"), str(streamed)]


def _machine(run: dict[str, Any]) -> str:
    machine = run.get("machine") or {}
    units = ", ".join(name for name in machine.get("isa", []) if name.startswith(("amx", "avx512")))
    words = [
        f"{machine.get('cpu') or 'unknown processor'}, {machine.get('cores', '?')} cores",
        f"{units or 'no AVX-512'} ({machine.get('kernels', '?')} kernels)",
    ]
    if machine.get("gpu"):
        words.append(f"{machine['gpu']}, driver {machine.get('driver')}")
    return "; ".join([*words, f"PyTorch {machine.get('torch', '?')}"])


def _commands(results: Results, section: str) -> Iterator[str]:
    rows = [row for row in results.section(section) if row.figures]
    if rows:
        lines = "\n".join(f"{row.command}  # run {row.run}" for row in rows)
        yield f"```\n{lines}\n```"


def _problems(results: Results, section: str) -> Iterator[str]:
    """What was asked and has no figures, and what a command could not compare."""
    lines = []
    for row in results.section(section):
        if row.failed is not None:
            lines.append(f"- `{row.name}` in run {row.run}: {row.failed}")
        lines += [f"- `{row.name}` in run {row.run}: {note}" for note in row.notes]
    if lines:
        yield "\n".join(["Missing:", "", *lines])
