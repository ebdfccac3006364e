"""TriMoE's layout at run time: loads predicted by a moving average, and moves that fit into the
window in which the GPU computes attention and MLP (tri/migrate.py)."""

from __future__ import annotations

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
from moesaic.policies.tri.costs import TriCosts
from moesaic.policies.tri.layer import Bools, Layer, num_resources
from moesaic.policies.tri.machine import DimmIndices, believed_costs, places_of
from moesaic.policies.tri.migrate import IN_HBM, MAX_MOVES, MOVE_WORDS, Lanes, plan_moves
from moesaic.policies.tri.predictor import LoadPredictor

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
        devices: str = "all",
        copies: int = 0,
    ) -> None:
        super().__init__(layers, experts, devices, copies)
        self.improves = offline == "joint"
        self.predictor = LoadPredictor(layers, experts, alpha)
        self._kinds = np.array([prefetch, relayout, rebalance])
        self._known: tuple[Costs, TriCosts, DimmIndices, float] | None = None
        self._last_end_ns = -1
        self.window_ns = 0.0

    def initial(self, profile: Profile, resident: Bools) -> Ints:
        self.predictor.start(profile.loads.mean(axis=0))
        return super().initial(profile, resident)

    def observe(self, layer: int, loads: Ints) -> None:
        self.predictor.observe(layer, loads)

    def learn(self, layer: int, start_ns: int, end_ns: int) -> None:
        if self._last_end_ns >= 0:
            between = float(max(start_ns - self._last_end_ns, 0))
            old = self.window_ns or between
            self.window_ns = _WINDOW_MEMORY * old + (1 - _WINDOW_MEMORY) * between
        self._last_end_ns = end_ns

    def propose(self, layer: int, view: View, belief: Belief) -> tuple[Move, ...]:
        """For the next layer; after the last one, for the first of the next step."""
        costs = belief.costs
        assert costs is not None, "a belief about every device"
        if self.window_ns <= 0 or not self._kinds.any():
            return ()
        if self._known is None or self._known[0] is not costs:
            dimms = DimmIndices.of(costs.topology)
            tri = believed_costs(costs, pipelined=True)
            self._known = costs, tri, dimms, _link_ns(costs, dimms)
        _, tri, dimms, link_ns = self._known
        number = (layer + 1) % self.layers
        predicted = self.predictor.loads[number].astype(np.float64)
        _still(view, number, predicted)
        loads = np.clip(np.ceil(predicted), 1, tri.tokens).astype(np.int64)
        places = places_of(view, dimms, number)
        span = np.ones(self.experts, dtype=np.int64)
        base = np.zeros(num_resources(tri))
        problem = Layer(loads, places.resident, places.striped, places.dimm, span, base)
        before = places_of(view, dimms, number)
        moves = np.zeros((MAX_MOVES, MOVE_WORDS), dtype=np.int64)
        lanes = _lanes(view, dimms, self.window_ns, link_ns)
        count = plan_moves(tri, problem, predicted, self.devices, lanes, self._kinds, moves)
        sources = np.full(self.experts, IN_DRAM)
        if dimms.count:
            sources = np.where(before.striped, IN_DRAM, np.array(dimms.placements)[before.dimm])
        found = [_move(number, move, sources, dimms) for move in _once(moves[:count].tolist())]
        route = view.topology.route
        return tuple(m for m in found if route(m.source, m.destination) is not None)


def _still(view: View, layer: int, predicted: Ints | np.ndarray) -> None:
    """What is under way stays out of the plan: it is not where it lies and not where it goes."""
    for flight in view.in_flight:
        if flight.layer == layer:
            predicted[flight.expert] = 0.0


def _once(moves: list[list[int]]) -> list[list[int]]:
    """Only the first move of each expert: with fast links one may be planned on from where an
    earlier move of the same window brings it, and it is not there yet."""
    first: dict[int, list[int]] = {}
    for move in moves:
        first.setdefault(move[1], move)
    return list(first.values())


def _move(layer: int, move: list[int], sources: Ints, dimms: DimmIndices) -> Move:
    _, expert, to, victim = move
    source = int(sources[expert])
    if to == IN_HBM:
        return Move(layer, expert, ExpertId(layer, victim), True, source, IN_VRAM)
    destination = IN_DRAM if to < 0 else dimms.placements[to]
    return Move(layer, expert, None, True, source, destination, leaves=True)


def _link_ns(costs: Costs, dimms: DimmIndices) -> float:
    """Of one expert from DIMM to DIMM, over the first link there is."""
    if dimms.count > 1:
        hops = costs.topology.route(dimms.placements[0], dimms.placements[1])
        if hops:
            return float(costs.move_ns[hops[0].link])
    return float("inf")


def _lanes(view: View, dimms: DimmIndices, window_ns: float, link_ns: float) -> Lanes:
    """A DIMM's lane is busy while any of its links is; its space is what its memory has left."""
    topology = view.topology
    free, space = np.zeros(max(dimms.count, 1) + 1), np.zeros(max(dimms.count, 1))
    free[0] = view.lane_busy_ns(PCIE)
    for at, memory in enumerate(dimms.memories):
        space[at] = (view.memory_slots[memory] - view.memory_occupied[memory]) // topology.units
        links = _links_of(topology, topology.memories[memory].name)
        free[at + 1] = max((view.busy_ns[lane] for lane in links), default=0)
    return Lanes(free, space, window_ns, link_ns, True)


def _links_of(topology: Topology, memory: str) -> list[int]:
    first = len(topology.devices)
    return [
        first + at
        for at, link in enumerate(topology.links)
        if link.name != PCIE and (memory in link.source or memory in link.destination)
    ]
