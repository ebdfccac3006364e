"""Many runs on one trace: which ones, on how many cores, and how they compare.

A combination that cannot be is kept with its reason: a gap in a table says more than an error
instead of a table."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

from moesaic.cli.shared.output import progress
from moesaic.cli.shared.what_if_options import Point
from moesaic.core.errors import ImpossibleSetting, MissingExtra
from moesaic.core.worker_pool import worker_pool
from moesaic.hardware.dimms import NdpDevice
from moesaic.hardware.machine_reader import load_machine
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import simulate
from moesaic.lab.simulate.workload import choose_workload
from moesaic.policies.gate import FULL
from moesaic.policies.policy_choice import PolicyChoice
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.schedule import schedules

Build = Callable[[dict[str, Any]], Settings]


class Configuration(NamedTuple):
    """A named set of policies: a known system, or schedule+cache+prefetch."""

    label: str
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ComparisonCell:
    """One cell of the grid; exactly one of `result` (as `simulate --json`) and `skipped`."""

    label: str
    machine: str
    cache_ratio: float
    result: dict[str, Any] | None = None
    skipped: str | None = None
    settings: Settings | None = None
    swept: Point = ()  # numbers of the machine or of the run, in the order of the sweeps

    @property
    def conditions(self) -> tuple[object, ...]:
        """Runs in the same place can be compared."""
        return self.machine, self.cache_ratio, self.swept

    @property
    def mean_s(self) -> float | None:
        return None if self.result is None else float(self.result["latency_s"]["mean"])


def configurations(
    systems: Iterable[str],
    schedules: Sequence[PolicyChoice] = (),
    caches: Sequence[PolicyChoice] = (),
    prefetches: Sequence[PolicyChoice] = (),
    gates: Sequence[PolicyChoice] = (),
) -> list[Configuration]:
    """The systems by name, then every combination of the policies that were listed; each with
    every gate."""
    found = [Configuration(name, {"system": name}) for name in systems]
    if schedules or caches or prefetches:
        own = PolicySet()
        lists = (
            schedules or (own.schedule,),
            caches or (own.cache,),
            prefetches or (own.prefetch,),
        )
        for chosen in product(*lists):
            options = dict(zip(("schedule", "cache", "prefetch"), chosen, strict=True))
            found.append(Configuration("+".join(map(str, chosen)), options))
    if not gates:
        return found
    return [
        Configuration(_with_gate(label, gate), {**options, "gate": gate})
        for label, options in found
        for gate in gates
    ]


def _with_gate(label: str, gate: PolicyChoice) -> str:
    return label if gate.name == FULL else f"{label}+{gate}"


def plan_grid(
    build: Build,
    entries: Sequence[Configuration],
    machines: Sequence[str],
    ratios: Sequence[float],
    points: Sequence[Point] = ((),),
) -> list[ComparisonCell]:
    """Every cell with its settings, or with the reason why there are none."""
    cells = []
    titles = _titles(machines)
    runs = (
        (machine, *each)
        for machine in machines
        for each in product(points, _ratios_of(machine, ratios), entries)
    )
    for machine, point, ratio, entry in runs:
        own = dict(point).get("cache_ratio", ratio)
        cell = ComparisonCell(entry.label, titles[machine], own, swept=point)
        asked = {**entry.options, "machine": machine, "cache_ratio": own, "point": point}
        try:
            settings = build(asked)
            _check_near_data(settings, entry.label)
            cells.append(replace(cell, settings=settings))
        except ImpossibleSetting as error:
            cells.append(replace(cell, skipped=str(error)))
    return _some_left(cells)


def _ratios_of(machine: str, ratios: Sequence[float]) -> Sequence[float]:
    """The cache ratios; where GPU and CPU have one memory there is only one: every expert is the
    GPU's."""
    return ratios if load_machine(machine).unified is None else (1.0,)


def _check_near_data(settings: Settings, label: str) -> None:
    """Refuse systems for near-data units on a machine without: they would be other systems."""
    schedule = settings.policies.schedule_for(settings.phase).name
    devices = settings.machine.flat.devices.values()
    if schedules.load(schedule).needs_units and not any(isinstance(d, NdpDevice) for d in devices):
        raise ImpossibleSetting(
            f"{label} computes experts in DIMMs, and no DIMM here has a unit for that: give the "
            "machine ndp.count of 1 or more"
        )


def _titles(machines: Sequence[str]) -> dict[str, str]:
    """The names machines give themselves; with the file where two have the same."""
    found = {machine: load_machine(machine).name for machine in machines}
    shared = Counter(found.values())
    return {
        machine: f"{name} ({machine})" if shared[name] > 1 and machine != name else name
        for machine, name in found.items()
    }


def run_grid(cells: Sequence[ComparisonCell], trace: str | None, jobs: int) -> list[ComparisonCell]:
    """Run what can run, on `jobs` processes; the order is the one given."""
    done = list(cells)
    waiting = [index for index, cell in enumerate(cells) if cell.settings is not None]
    with progress("comparing", len(waiting)) as advance:
        if min(jobs, len(waiting)) <= 1:
            for index in waiting:
                done[index] = run_cell(cells[index], trace)
                advance()
            return _some_left(done)
        with worker_pool(min(jobs, len(waiting))) as pool:
            with _deaf():
                running = {pool.submit(run_cell, cells[index], trace): index for index in waiting}
            for future in as_completed(running):
                done[running[future]] = future.result()
                advance()
    return _some_left(done)


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes begun here never see Ctrl-C, which a terminal sends to all of them: they inherit
    that it is blocked. This one gets it behind the block."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _some_left(cells: list[ComparisonCell]) -> list[ComparisonCell]:
    if all(cell.skipped is not None for cell in cells):
        raise ImpossibleSetting(f"none of these can run. The first: {cells[0].skipped}")
    return cells


def run_cell(cell: ComparisonCell, trace: str | None) -> ComparisonCell:
    """One run; in another process it makes the same trace from the same settings."""
    assert cell.settings is not None, "a skipped cell has nothing to run"
    try:
        source = choose_workload(trace, cell.settings).source
        return replace(cell, result=simulate(cell.settings, source).as_dict())
    except (ImpossibleSetting, MissingExtra) as error:
        return replace(cell, skipped=str(error))


def speedups(cells: Sequence[ComparisonCell], baseline: str) -> list[float | None]:
    """How many times faster than the baseline in the same place."""
    base = {cell.conditions: cell.mean_s for cell in cells if cell.label == baseline}
    return [_ratio(base.get(cell.conditions), cell.mean_s) for cell in cells]


def _ratio(base: float | None, own: float | None) -> float | None:
    return None if base is None or own is None else base / own
