"""The whole table: which rows there are, and what is computed for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import as_completed
from typing import Any

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.worker_pool import worker_pool
from moesaic.reproductions.row import Row
from moesaic.reproductions.trimoe import (
    beyond,
    check,
    fig3,
    fig5,
    fig6,
    fig7,
    fig8,
    fig9,
    headline,
    memory,
    migration,
    readings,
    real_traces,
    sec55,
    seeds,
    sensitivity,
    spread,
    table3,
)
from moesaic.reproductions.trimoe.claims import Claim
from moesaic.reproductions.trimoe.replayed import replayed
from moesaic.reproductions.trimoe.runs import MAKESPAN, PLANS, SIMULATOR, Run
from moesaic.reproductions.trimoe.simulated import planned, simulated

PARTS = (
    fig3, fig5, fig6, readings, headline, memory, fig7, table3, fig8, fig9, sec55, beyond,
    sensitivity, migration, check,
)  # fmt: skip
STARTS = "fig3, fig5, fig6, readings, headline, seeds, memory, fig7, table3, fig8, fig9, sec5.5, "
STARTS += "beyond, sensitivity, migration, check, spread"

_BODIES = {SIMULATOR: simulated, MAKESPAN: replayed, PLANS: planned}


class Reproduction:
    """The rows whose id starts with `only`, not computed yet. `traces` is a folder with real
    routing traces; without it there are no rows of real routing. The headline is drawn with as
    many `seeds`."""

    def __init__(self, only: str = "", traces: str | None = None, seeds: int = seeds.SEEDS) -> None:
        every = list(_wanted(traces, seeds))
        exact = [each for each in every if each.id == only]
        self._wanted = exact or [each for each in every if each.id.startswith(only)]
        if not self._wanted:
            real = "real" if traces else "real (with --traces)"
            raise ImpossibleSetting(
                f"no row of this reproduction has an id that starts with {only!r}; ids start with "
                f"{STARTS} or {real}"
            )
        self._items = list(dict.fromkeys(item for each in self._wanted for item in each.items))

    @property
    def total(self) -> int:
        """How many things there are to compute."""
        return len(self._items)

    def rows(self, jobs: int = 1, advance: Callable[[int], None] = lambda done: None) -> list[Row]:
        """Compute them all, in `jobs` processes; `advance(n)` is called after every n."""
        done = dict(_computed(self._items, jobs, advance))
        return [each.row(done) for each in self._wanted]


def _wanted(traces: str | None, count: int) -> Iterator[Claim]:
    rows = [row for part in PARTS for row in part.wanted()]
    rows += seeds.wanted(count)
    if traces is not None:
        rows += real_traces.wanted(traces)
    yield from rows
    yield from spread.wanted(rows, traces)


def _computed(
    items: list[Any], jobs: int, advance: Callable[[int], None]
) -> Iterator[tuple[Any, Any]]:
    groups: dict[object, list[Any]] = {}
    for item in items:
        groups.setdefault(item.group, []).append(item)
    if jobs <= 1 or len(groups) <= 1:
        for group in groups.values():
            for item in group:
                yield item, execute(item)
                advance(1)
        return
    largest_first = sorted(groups.values(), key=len, reverse=True)
    with worker_pool(jobs) as pool:
        for done in as_completed([pool.submit(_group, group) for group in largest_first]):
            yield from done.result()
            advance(len(done.result()))


def _group(items: list[Any]) -> list[tuple[Any, Any]]:
    return [(item, execute(item)) for item in items]


def execute(item: Any) -> Any:
    """An item's own result, or what the body that a run names makes of it."""
    return _BODIES[item.body](item) if isinstance(item, Run) else item.execute()
