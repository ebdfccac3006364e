"""A comparison as JSON rows and as tables, one per machine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from moesaic.cli.shared.output import print_table
from moesaic.cli.shared.table_formats import as_markdown
from moesaic.cli.shared.what_if_options import changes_text
from moesaic.cli.study.comparison import ComparisonCell, speedups

# Narrow: ms and MB are per step, floor says how many times the physical floor.
COLUMNS = ("cache", "system", "ms", "speedup", "tok/s", "hits", "MB", "floor")


def as_rows(cells: Sequence[ComparisonCell], baseline: str, command: str) -> list[dict[str, Any]]:
    """What `simulate --json` says of each run, with its label; a skipped one says why."""
    rows = []
    for cell, speedup in zip(cells, speedups(cells, baseline), strict=True):
        row: dict[str, Any] = {
            "system": cell.label,
            "machine": cell.machine,
            "cache_ratio": cell.cache_ratio,
        }
        if cell.swept:
            row["swept"] = dict(cell.swept)
        if cell.result is None:
            row["skipped"] = cell.skipped
        else:
            row |= {
                **cell.result,
                "machine": cell.machine,
                "baseline": baseline,
                "speedup": speedup,
            }
        rows.append({**row, "command": command})
    return rows


def print_comparison(cells: Sequence[ComparisonCell], baseline: str) -> None:
    rated = list(zip(cells, speedups(cells, baseline), strict=True))
    swept = [name for name, _ in cells[0].swept]
    for machine, group in groupby(rated, key=lambda pair: pair[0].machine):
        rows = [(*_shown(cell), *_row(cell, speedup)) for cell, speedup in group]
        print_table(_title(cells, machine, baseline), (*swept, *COLUMNS), rows)
    reasons: dict[str, list[str]] = {}
    for cell in cells:
        if cell.skipped is not None:
            at = f" with {changes_text(cell.swept)}" if cell.swept else ""
            where = f"{cell.label} at {cell.cache_ratio:.0%} on {cell.machine}{at}"
            reasons.setdefault(cell.skipped, []).append(where)
    if reasons:
        rows = [(", ".join(where), reason) for reason, where in reasons.items()]
        print_table("Skipped", ("what", "why"), rows)


def markdown(cells: Sequence[ComparisonCell], baseline: str) -> str:
    """All machines in one table, with what the tables' titles say in columns of its own; a run
    that was skipped has its reason in the last column."""
    result = next(cell.result for cell in cells if cell.result is not None)
    skipped = any(cell.skipped is not None for cell in cells)
    names = ("model", "machine", "run", *(name for name, _ in cells[0].swept), *COLUMNS)
    own = result["model"], workload_words(cells)
    rows = [
        (own[0], cell.machine, own[1], *_shown(cell), *_row(cell, speedup), cell.skipped)
        for cell, speedup in zip(cells, speedups(cells, baseline), strict=True)
    ]
    if skipped:
        return as_markdown((*names, "skipped"), rows)
    return as_markdown(names, [row[:-1] for row in rows])


def _shown(cell: ComparisonCell) -> list[str]:
    """The swept values, as numbers are written."""
    return [f"{v:g}" if isinstance(v, (int, float)) else str(v) for _, v in cell.swept]


def workload_words(cells: Sequence[ComparisonCell]) -> str:
    """What all runs have in common: decode, batch 64, bf16 experts, synthetic routing."""
    result = next(cell.result for cell in cells if cell.result is not None)
    swept = {name for name, _ in cells[0].swept}
    words = [result["phase"]]
    if result["phase"] == "decode" and "batch" not in swept:
        words.append(f"batch {result['batch']}")
    if "expert_dtype" not in swept:
        words.append(f"{result['expert_dtype']} experts")
    words.append(f"{result['trace']['origin']} routing")
    return ", ".join(words)


def _title(cells: Sequence[ComparisonCell], machine: str, baseline: str) -> str:
    result = next(cell.result for cell in cells if cell.result is not None)
    unit = "prompt" if result["phase"] == "prefill" else "step"
    return (
        f"{result['model']} on {machine}: {workload_words(cells)}\n"
        f"Mean of {result['steps']} {unit}s; ms and MB per {unit}, speedup over {baseline}, floor: "
        "times the physical floor"
    )


def _row(cell: ComparisonCell, speedup: float | None) -> tuple[object, ...]:
    result, share = cell.result, f"{cell.cache_ratio:.0%}"
    if result is None:
        return (share, cell.label, *[None] * (len(COLUMNS) - 2))
    return (
        share,
        cell.label,
        f"{result['latency_s']['mean'] * 1e3:.2f}",
        None if speedup is None else f"{speedup:.2f}",
        f"{result['tokens_per_s']:.1f}",
        f"{result['hit_rate']:.0%}",
        _megabytes(result["bytes_moved"] / result["steps"]),
        f"{result['floor_ratio']:.2f}",
    )


def _megabytes(moved: float) -> str:
    """Whole ones, unless that would leave one digit or none."""
    megabytes = moved / 1e6
    return f"{megabytes:.0f}" if megabytes >= 10 else f"{megabytes:.2f}"
