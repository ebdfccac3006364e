"""TriMoE's layout at run time: loads predicted by a moving average, and moves that fit into the
window in which the GPU computes attention and MLP, by the paper's classes (tri/class_moves.py) or
by the makespan (tri/migrate.py)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moesaic.core.layer_plan import Move
from moesaic.core.offloading import IN_DRAM, IN_VRAM, PCIE
from moesaic.core.routing import ExpertId
from moesaic.core.topology import Topology
from moesaic.core.view import View
from moesaic.policies.belief import Belief
from moesaic.policies.costs import Costs
from moesaic.policies.layout.base import Ints, Profile
from moesaic.policies.layout.offline import Offline
from moesaic.policies.tri.class_moves import MARGIN, SKEW, Classes, plan_class_moves
from moesaic.policies.tri.costs import Floats, TriCosts
from moesaic.policies.tri.layer import Bools, Layer, Places, num_resources
from moesaic.policies.tri.machine import DimmIndices, believed_costs, places_of
from moesaic.policies.tri.migrate import IN_HBM, MAX_MOVES, MOVE_WORDS, Lanes, plan_moves
from moesaic.policies.tri.predictor import LoadPredictor

CLASSES, SMOOTH_MAKESPAN = "classes", "smooth-makespan"
_WINDOW_MEMORY = 0.9  # of the running mean of the time between layers


class TriMoeLayout(Offline):
    adapts = True

    def __init__(
        self,
        layers: int,
        experts: int,
        alpha: float = 0.3,
        prefetch: bool = True,
        relayout: bool = True,
        rebalance: bool = True,
        offline: str = "cut",
        rule: str = CLASSES,
        warm: float = 0.0,
        margin: float = MARGIN,
        skew: float = SKEW,
        devices: str = "all",
        copies: int = 0,
        splits: int = 0,
    ) -> None:
        super().__init__(layers, experts, devices, copies, splits)
        self.improves, self.localizes = offline == "joint", offline == "localized"
        self._rule, self._warm_share, self._margin, self._skew = rule, warm, margin, skew
        self._sizes: tuple[Ints, Ints] | None = None  # hot and warm experts of every layer
        self.predictor = LoadPredictor(layers, experts, alpha)
        self._kinds = np.array([prefetch, relayout, rebalance])
        self._known: tuple[Belief, _Machine] | None = None
        self._last_end_ns = -1
        self.window_ns = 0.0

    def initial(self, profile: Profile, resident: Bools) -> Ints:
        found = super().initial(profile, resident)
        self.start(resident, found == IN_DRAM, profile.loads.mean(axis=0))
        return found

    def start(self, resident: Bools, striped: Bools, loads: Floats | None = None) -> None:
        """As many experts of a layer are hot as are in GPU memory now, [layers, experts], and warm
        as are striped besides; `loads` are mean ones that are known."""
        self._sizes = resident.sum(axis=1), (striped & ~resident).sum(axis=1)
        if loads is not None:
            self.predictor.start(loads)

    def observe(self, layer: int, loads: Ints) -> None:
        self.predictor.observe(layer, loads)

    def learn(self, layer: int, start_ns: int, end_ns: int) -> None:
        if self._last_end_ns >= 0:
            between = float(max(start_ns - self._last_end_ns, 0))
            old = self.window_ns or between
            self.window_ns = _WINDOW_MEMORY * old + (1 - _WINDOW_MEMORY) * between
        self._last_end_ns = end_ns

    def propose(self, layer: int, view: View, belief: Belief) -> tuple[Move, ...]:
        """Moves for the next layer; after the last one, for the first of the next step."""
        if self.window_ns <= 0 or not self._kinds.any():
            return ()
        if self._known is None or self._known[0] is not belief:
            self._known = belief, _Machine.of(belief)
        machine, number = self._known[1], (layer + 1) % self.layers
        dimms = machine.dimms
        places = places_of(view, dimms, number)
        sources = np.full(self.experts, IN_DRAM)
        if dimms.count:
            sources = np.where(places.striped, IN_DRAM, machine.placements[places.dimm])
        if dimms.splits:
            split = (places.span > 1) & ~places.striped
            sources[split] = np.array(dimms.splits)[places.dimm[split] // dimms.span]
        still, lanes = _still(view, number, self.experts), machine.lanes(view, self.window_ns)
        moves = self.plan(number, machine.costs, places, still, lanes)
        found = [_move(number, move, sources, dimms) for move in moves.tolist()]
        route = view.topology.route
        return tuple(m for m in found if route(m.source, m.destination) is not None)

    def plan(self, layer: int, costs: TriCosts, places: Places, still: Bools, lanes: Lanes) -> Ints:
        """Moves of a layer's experts, best first, [moves, MOVE_WORDS]; what is `still` stays out of
        them. `places` becomes where they will lie, `lanes` what is left of them."""
        predicted = self.predictor.loads[layer].astype(np.float64)
        if self._rule == SMOOTH_MAKESPAN:
            predicted[still] = 0.0
        loads = np.clip(np.ceil(predicted), 1, costs.tokens).astype(np.int64)
        problem = Layer(loads, *places, np.zeros(num_resources(costs)))
        moves = np.zeros((MAX_MOVES, MOVE_WORDS), dtype=np.int64)
        if self._rule == SMOOTH_MAKESPAN:
            count = plan_moves(costs, problem, predicted, self.devices, lanes, self._kinds, moves)
        else:
            rule = self._classes(layer, problem)
            count = plan_class_moves(
                costs, problem, predicted, still, lanes, self._kinds, rule, moves
            )
        return moves[:count]

    def _classes(self, layer: int, problem: Layer) -> Classes:
        if self._sizes is None:  # no profile: as things lie now
            hot, striped = problem.resident.sum(), (problem.striped & ~problem.resident).sum()
        else:
            hot, striped = self._sizes[0][layer], self._sizes[1][layer]
        warm = round(self._warm_share * self.experts) or int(striped)
        return Classes(int(hot), warm, self._margin, self._skew)


def _still(view: View, layer: int, experts: int) -> Bools:
    """What is under way stays out of the plan: it is not where it lies and not where it goes."""
    found = np.zeros(experts, dtype=np.bool_)
    for flight in view.in_flight:
        if flight.layer == layer:
            found[flight.expert] = True
    return found


def _move(layer: int, move: list[int], sources: Ints, dimms: DimmIndices) -> Move:
    _, expert, to, victim = move
    source = int(sources[expert])
    if to == IN_HBM:
        return Move(layer, expert, ExpertId(layer, victim), True, source, IN_VRAM)
    destination = IN_DRAM if to < 0 else dimms.placements[to]
    return Move(layer, expert, None, True, source, destination, leaves=True)


@dataclass(frozen=True, slots=True)
class _Machine:
    """What stays as it is as long as the belief does."""

    costs: TriCosts
    dimms: DimmIndices
    placements: Ints  # whole in each DIMM
    link_ns: float
    links: tuple[Ints, ...]  # lanes of the links at each DIMM

    @classmethod
    def of(cls, belief: Belief) -> _Machine:
        costs, reads = belief.costs, belief.host_reads
        assert costs is not None, "a belief about every device"
        dimms, topology = DimmIndices.of(costs.topology), costs.topology
        names = [topology.memories[memory].name for memory in dimms.memories]
        return cls(
            believed_costs(costs, **reads._asdict(), pipelined=True),
            dimms,
            np.array(dimms.placements, dtype=np.int64),
            _link_ns(costs, dimms),
            tuple(np.array(_links_of(topology, name), dtype=np.int64) for name in names),
        )

    def lanes(self, view: View, window_ns: float) -> Lanes:
        """A DIMM's lane is busy while any of its links is; its space is what its memory has
        left."""
        count = max(self.dimms.count, 1)
        free, space = np.zeros(count + 1), np.zeros(count)
        free[0] = view.lane_busy_ns(PCIE)
        for at, (memory, links) in enumerate(zip(self.dimms.memories, self.links, strict=True)):
            left = view.memory_slots[memory] - view.memory_occupied[memory]
            space[at] = left // view.topology.units
            free[at + 1] = view.busy_ns[links].max(initial=0)
        return Lanes(free, space, window_ns, self.link_ns, True)


def _link_ns(costs: Costs, dimms: DimmIndices) -> float:
    """The time of one expert from DIMM to DIMM, over the first link there is."""
    if dimms.count > 1:
        hops = costs.topology.route(dimms.placements[0], dimms.placements[1])
        if hops:
            return float(costs.move_ns[hops[0].link])
    return float("inf")


def _links_of(topology: Topology, memory: str) -> list[int]:
    first = len(topology.devices)
    return [
        first + at
        for at, link in enumerate(topology.links)
        if link.name != PCIE and (memory in link.source or memory in link.destination)
    ]
