"""What a gate has gained in a bench, over the row of gate `full` where there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from moesaic.engine.gate_stats import GateStats
from moesaic.lab.bench.bench_row import BenchRow
from moesaic.policies.gate import FULL


def gate_stats(row: BenchRow, rows: Sequence[BenchRow]) -> GateStats:
    """The equation's T is the time per token of the full model, if `rows` have the same test with
    all else equal; else, as everywhere, it is taken from the row's own big passes."""
    full_s = _full_s(row, rows)
    found = row.runs.gate.stats(row.runs.prefetch_accuracy, full_s)
    if full_s is None:
        return found
    return replace(found, measured_speedup=full_s * row.tokens / row.seconds)


def _full_s(row: BenchRow, rows: Sequence[BenchRow]) -> float | None:
    settings = row.config.settings
    if row.case.phase == "prefill" or settings.policies.gate.name == FULL:
        return None
    wanted = replace(settings, policies=settings.policies.but(gate=FULL))
    same = (each for each in rows if each.case == row.case and each.config.settings == wanted)
    full = next(same, None)
    return None if full is None else full.seconds / full.tokens
