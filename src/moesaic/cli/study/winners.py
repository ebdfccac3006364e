"""Which system is the fastest on which machine at which cache ratio, and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moesaic.cli.study.comparison import ComparisonCell

CLEARLY = 1.02  # times as fast as the next one: less is within the simulator's error
COLUMNS = ("machine", "cache", "fastest", "tok/s", "over baseline", "over next", "next")


@dataclass(frozen=True, slots=True)
class Winner:
    """The winner on one machine at one cache ratio. `skipped` is why nothing runs there; then all
    else is empty. `over_baseline` is None where the baseline does not run, `over_next` where
    nothing else does."""

    machine: str
    cache_ratio: float
    unified: bool  # GPU and CPU have one memory, and so no other ratio
    system: str = ""
    tokens_per_s: float = 0.0
    over_baseline: float | None = None
    following: str = ""
    over_next: float | None = None
    skipped: str | None = None

    @property
    def clear(self) -> bool:
        return self.over_next is None or self.over_next >= CLEARLY


def winners(cells: Sequence[ComparisonCell], baseline: str) -> list[Winner]:
    """One per machine and ratio, in the order of the cells."""
    groups: dict[tuple[str, float], list[ComparisonCell]] = {}
    for cell in cells:
        groups.setdefault((cell.machine, cell.cache_ratio), []).append(cell)
    return [_winner(group, baseline) for group in groups.values()]


def _winner(cells: Sequence[ComparisonCell], baseline: str) -> Winner:
    machine, ratio = cells[0].machine, cells[0].cache_ratio
    known = [cell.settings.machine for cell in cells if cell.settings is not None]
    unified = any(spec.unified is not None for spec in known)
    timed = [(cell.mean_s, cell) for cell in cells if cell.mean_s is not None]
    if not timed:
        return Winner(machine, ratio, unified, skipped=cells[0].skipped)
    timed.sort(key=lambda pair: pair[0])  # of equal ones, the first that was asked for
    (best_s, best), *others = timed
    assert best.result is not None
    base = next((mean for mean, cell in timed if cell.label == baseline), None)
    return Winner(
        machine,
        ratio,
        unified,
        best.label,
        best.result["tokens_per_s"],
        None if base is None else base / best_s,
        others[0][1].label if others else "",
        others[0][0] / best_s if others else None,
    )


def rows(found: Sequence[Winner]) -> list[tuple[object, ...]]:
    """The rows of a table with `COLUMNS`."""
    return [
        (each.machine, f"{each.cache_ratio:.0%}", *[None] * 5)
        if each.skipped is not None
        else (
            each.machine,
            f"{each.cache_ratio:.0%}",
            each.system,
            f"{each.tokens_per_s:.1f}",
            None if each.over_baseline is None else f"{each.over_baseline:.2f}",
            None if each.over_next is None else f"{each.over_next:.2f}",
            each.following or None,
        )
        for each in found
    ]
