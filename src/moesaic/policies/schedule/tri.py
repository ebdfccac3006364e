"""What schedules over GPU, CPU and near-data units share: the layer as the makespan model sees it,
and the assignment that a choice means. On a machine without such units they use GPU and CPU."""

from __future__ import annotations

from abc import abstractmethod
from typing import TypedDict

import numpy as np

from moesaic.core.layer_plan import PARTS
from moesaic.core.offloading import IN_VRAM
from moesaic.policies.belief import Belief
from moesaic.policies.schedule.base import Assignment, Schedule, Work, served_as
from moesaic.policies.timelines import (
    CPU_FIRST,
    CPU_FREE,
    EXPERT,
    GPU_FREE,
    LINK_FREE,
    LOAD,
    MOVED,
    READY,
)
from moesaic.policies.tri import baselines
from moesaic.policies.tri.costs import ON_CPU, ON_GPU, ON_NDP, OWN_SHARE, Floats, TriCosts
from moesaic.policies.tri.exact import SECONDS, optimal
from moesaic.policies.tri.fast import KICKS, ROUNDS, balanced
from moesaic.policies.tri.layer import (
    ALL_DEVICES,
    CPU_TIME,
    FIRST_DIMM,
    GPU_TIME,
    NO_DIMM,
    PCIE_TIME,
    Bools,
    Ints,
    Layer,
    Options,
    makespan,
    num_resources,
    options_of,
)
from moesaic.policies.tri.machine import (
    NO_DIMMS,
    DimmIndices,
    believed_costs,
    offloading_costs,
    places_of,
)
from moesaic.policies.tri.refine import EVERY, REFINE, trimoe, trimoe_from_the_end


class Rules(TypedDict):
    contention: str
    shared: bool
    pipelined: bool


class TriSchedule(Schedule):
    """`contention` and `shared` are how host reads are believed to disturb DIMMs and each other;
    `pipelined`, whether loading is believed to overlap with computing on the GPU."""

    needs_slots = True
    needs_units = True
    devices: Bools = ALL_DEVICES

    def __init__(
        self, contention: str = OWN_SHARE, shared: bool = True, pipelined: bool = True
    ) -> None:
        self._rules = Rules(contention=contention, shared=shared, pipelined=pipelined)
        self._known: tuple[Belief, TriCosts, DimmIndices] | None = None

    @abstractmethod
    def choose(self, options: Options, loads: Ints, resident: Bools) -> Ints:
        """The option of every expert: ON_GPU, ON_CPU or ON_NDP."""

    def assign(self, work: Work) -> Assignment:
        costs, dimms = self._costs(work.belief)
        layer = _layer(work, costs, dimms)
        options = options_of(costs, layer, self.devices)
        if dimms.count:
            _only_cpu_for_moving(work, layer, options)
        choice = self.choose(options, layer.loads, layer.resident)
        if dimms.count == 0:  # GPU, CPU and a link: the timelines know when that ends
            return served_as(work, np.where(layer.resident | (choice != ON_GPU), choice, MOVED))
        ready, experts = work.table[READY, : work.n], work.table[EXPERT, : work.n]
        here = np.flatnonzero((choice == ON_GPU) & layer.resident)
        here = here[np.argsort(ready[here], kind="stable")]
        # Highest load first, as the table is: transfers hide behind what is computed longest.
        moved = tuple(experts[(choice == ON_GPU) & ~layer.resident].tolist())
        on_ndp, last = choice == ON_NDP, layer.dimm + layer.span - 1
        near = [
            experts[on_ndp & (layer.dimm <= at) & (at <= last)] for at in range(len(dimms.units))
        ]
        return Assignment(
            (*experts[here].tolist(), *moved),
            tuple(experts[choice == ON_CPU].tolist()),
            moved,
            int(makespan(options, choice)),
            {u: tuple(q.tolist()) for u, q in zip(dimms.units, near, strict=True) if len(q)},
            _parts(experts, layer, on_ndp, dimms),
        )

    def _costs(self, belief: Belief) -> tuple[TriCosts, DimmIndices]:
        if self._known is None or self._known[0] is not belief:
            if belief.costs is None:
                tri, dimms = offloading_costs(belief, **self._rules), NO_DIMMS
            else:
                tri = believed_costs(belief.costs, **self._rules)
                dimms = DimmIndices.of(belief.costs.topology)
            self._known = belief, tri, dimms
        return self._known[1:]


def _layer(work: Work, costs: TriCosts, dimms: DimmIndices) -> Layer:
    experts, loads = work.table[EXPERT, : work.n], work.table[LOAD, : work.n]
    resident = work.table[READY, : work.n] >= 0  # or on its way
    striped, dimm = np.ones(work.n, dtype=np.bool_), np.full(work.n, NO_DIMM)
    span = np.ones(work.n, dtype=np.int64)
    if dimms.count:
        assert work.view is not None, "where experts lie"
        places = places_of(work.view, dimms, work.layer)
        striped, dimm = places.striped[experts], places.dimm[experts]
        span = places.span[experts]
    base = busy_now(work, costs, dimms)
    return Layer(loads.copy(), resident, striped, dimm, span, base)


def _parts(
    experts: Ints, layer: Layer, on_ndp: Bools, dimms: DimmIndices
) -> dict[int, dict[str, int]]:
    """What each unit computes of the split experts that stay in their DIMMs."""
    found: dict[int, dict[str, int]] = {}
    for i in np.flatnonzero(on_ndp & (layer.span > 1)).tolist():
        first, span = int(layer.dimm[i]), int(layer.span[i])
        ends = [PARTS * at // span for at in range(span + 1)]
        found[int(experts[i])] = {
            dimms.units[first + at]: ends[at + 1] - ends[at] for at in range(span)
        }
    return found


def _only_cpu_for_moving(work: Work, layer: Layer, options: Options) -> None:
    """An expert on its way between DIMMs may have left one and reached the other when its turn
    comes: only the CPU, which reads everywhere, can be sure of it."""
    assert work.view is not None
    flights = work.view.in_flight
    moving = {f.expert for f in flights if f.layer == work.layer and f.destination != IN_VRAM}
    for i, expert in enumerate(work.table[EXPERT, : work.n].tolist()):
        if expert in moving and np.isfinite(options.time[i, ON_CPU]):
            options.time[i, ON_NDP] = np.inf
            if not layer.resident[i]:
                options.time[i, ON_GPU] = np.inf


def busy_now(work: Work, costs: TriCosts, dimms: DimmIndices) -> Floats:
    """How long each resource is busy already, what a device takes for a layer's first expert
    included."""
    base, lanes = np.zeros(num_resources(costs)), work.lanes
    base[GPU_TIME], base[PCIE_TIME] = lanes[GPU_FREE], lanes[LINK_FREE]
    base[CPU_TIME] = lanes[CPU_FREE] + lanes[CPU_FIRST]
    if dimms.units:
        assert work.view is not None
        assert work.belief.costs is not None
        for at, unit in enumerate(dimms.units):
            lane = work.view.topology.device(unit)
            base[FIRST_DIMM + at] = work.view.busy_ns[lane] + work.belief.costs.first_ns[lane]
    return base


__all__ = ["OWN_SHARE", "TriSchedule"]


class TriMoe(TriSchedule):
    """Greedy by own cost, then refined at the bottleneck until no reassignment helps."""

    def __init__(
        self,
        refine: int = REFINE,
        candidates: int = EVERY,
        least_first: bool = False,
        contention: str = OWN_SHARE,
        shared: bool = True,
        pipelined: bool = False,
    ) -> None:
        super().__init__(contention, shared, pipelined)
        self._refine, self._candidates = refine, candidates
        self._schedule = trimoe_from_the_end if least_first else trimoe  # highest load first

    def choose(self, options: Options, loads: Ints, resident: Bools) -> Ints:
        return self._schedule(options, self._refine, self._candidates)


class TriBalanced(TriSchedule):
    """Prices, rounding and local search: close to the exact makespan, fast."""

    def __init__(
        self,
        rounds: int = ROUNDS,
        kicks: int = KICKS,
        contention: str = OWN_SHARE,
        shared: bool = True,
        pipelined: bool = True,
    ) -> None:
        super().__init__(contention, shared, pipelined)
        self._rounds, self._kicks = rounds, kicks

    def choose(self, options: Options, loads: Ints, resident: Bools) -> Ints:
        return balanced(options, self._rounds, self._kicks)[0]


class TriOptimal(TriSchedule):
    """The exact makespan by a mixed-integer program. A bound, not for speed."""

    def __init__(
        self,
        seconds: float = SECONDS,
        contention: str = OWN_SHARE,
        shared: bool = True,
        pipelined: bool = True,
    ) -> None:
        super().__init__(contention, shared, pipelined)
        self._seconds = seconds

    def choose(self, options: Options, loads: Ints, resident: Bools) -> Ints:
        return optimal(options, seconds=self._seconds)[0]


# The systems TriMoE is compared with, over the same costs: tri/baselines.py.
class Klotski(TriSchedule):
    needs_units = False
    devices = baselines.GPU_ONLY

    def choose(self, options: Options, loads: Ints, resident: Bools) -> Ints:
        return baselines.klotski(options)


class EnhancedKtransformers(TriSchedule):
    needs_units = False
    devices = baselines.GPU_CPU

    def choose(self, options: Options, loads: Ints, resident: Bools) -> Ints:
        return baselines.enhanced_ktransformers(options, loads, resident)


class Monde(TriSchedule):
    devices = baselines.GPU_NDP

    def choose(self, options: Options, loads: Ints, resident: Bools) -> Ints:
        return baselines.monde(options, loads, resident)
