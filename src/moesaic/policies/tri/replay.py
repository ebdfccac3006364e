"""Decode steps by the makespan model alone: predict, migrate, schedule, layer after layer.

Much faster than a simulation, and with nothing in it but equations 1 to 8 and the lanes of the
moves. A move becomes effective when it has arrived; until then the expert is where it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from moesaic.core.errors import UnknownName
from moesaic.policies.tri import baselines, fast, refine
from moesaic.policies.tri.class_moves import MARGIN, SKEW, Classes, plan_class_moves
from moesaic.policies.tri.costs import Floats, TriCosts
from moesaic.policies.tri.layer import (
    ALL_DEVICES,
    CPU_TIME,
    FIRST_DIMM,
    NO_DIMM,
    PCIE_TIME,
    Bools,
    Ints,
    Layer,
    Options,
    add_read,
    busy_times,
    num_resources,
    options_of,
)
from moesaic.policies.tri.layout import Layout
from moesaic.policies.tri.migrate import (
    IN_HBM,
    MAX_MOVES,
    MOVE_WORDS,
    Lanes,
    idle_lanes,
    place,
    plan_moves,
)
from moesaic.policies.tri.predictor import ALPHA, LoadPredictor

Chooses = Callable[[Options, Ints, Bools], Ints]


@dataclass(frozen=True, slots=True)
class TriSystem:
    """Which devices it has, how it divides a layer, and which kinds of moves it makes."""

    devices: Bools
    choose: Chooses
    prefetches: bool = True
    relayouts: bool = False
    rebalances: bool = False
    by_classes: bool = True  # moves by the paper's rule, not by the smooth makespan
    margin: float = MARGIN

    @property
    def kinds(self) -> Bools:
        return np.array([self.prefetches, self.relayouts, self.rebalances])


def _trimoe(options: Options, loads: Ints, resident: Bools) -> Ints:
    return refine.trimoe(options, refine.REFINE)


def _one_candidate(options: Options, loads: Ints, resident: Bools) -> Ints:
    return refine.trimoe(options, refine.REFINE, 1)


def _from_the_end(options: Options, loads: Ints, resident: Bools) -> Ints:
    return refine.trimoe_from_the_end(options, refine.REFINE)


def _balanced(options: Options, loads: Ints, resident: Bools) -> Ints:
    return fast.balanced(options, fast.ROUNDS, fast.KICKS)[0]


def _greedy(options: Options, loads: Ints, resident: Bools) -> Ints:
    return refine.greedy(options)


def _klotski(options: Options, loads: Ints, resident: Bools) -> Ints:
    return baselines.klotski(options)


TRI_SYSTEMS = {
    "klotski": TriSystem(baselines.GPU_ONLY, _klotski),
    "enhanced-ktransformers": TriSystem(baselines.GPU_CPU, baselines.enhanced_ktransformers),
    "monde": TriSystem(baselines.GPU_NDP, baselines.monde),
    "trimoe-greedy": TriSystem(ALL_DEVICES, _greedy),
    "trimoe-refined": TriSystem(ALL_DEVICES, _trimoe),
    "trimoe": TriSystem(ALL_DEVICES, _trimoe, True, True, True),
    "trimoe-one-candidate": TriSystem(ALL_DEVICES, _one_candidate, True, True, True),
    "trimoe-least-first": TriSystem(ALL_DEVICES, _from_the_end, True, True, True),
    "trimoe-smooth": TriSystem(ALL_DEVICES, _trimoe, True, True, True, False),
    "tri-balanced": TriSystem(ALL_DEVICES, _balanced, True, True, True, margin=0.25),
    "tri-balanced-smooth": TriSystem(ALL_DEVICES, _balanced, True, True, True, False),
}


def load_tri_system(name: str) -> TriSystem:
    if name not in TRI_SYSTEMS:
        raise UnknownName("three-device system", name, TRI_SYSTEMS)
    return TRI_SYSTEMS[name]


@dataclass(frozen=True, slots=True)
class Window:
    """Time between layers in which the GPU computes attention and MLP, and what a move takes."""

    window_ns: float
    link_ns: float  # one expert over one DIMM-Link
    carry: bool = True
    space: float = np.inf  # experts of all layers that fit into one DIMM


@dataclass(slots=True)
class _Move:
    ends_ns: float
    expert: int
    to: int


@dataclass(slots=True)
class Step:
    """`makespan_ns[layer]` and `busy_ns[layer, resource]`."""

    makespan_ns: Floats
    busy_ns: Floats
    moves: Ints  # [kinds]


@dataclass(slots=True)
class Replay:
    system: TriSystem
    costs: TriCosts
    layouts: list[Layout]
    window: Window
    predictor: LoadPredictor
    _planned: list[Layout] = field(init=False)
    _coming: list[list[_Move]] = field(init=False)
    _lanes: Lanes = field(init=False)
    _classes: list[Classes] = field(init=False)
    _now_ns: float = 0.0

    def __post_init__(self) -> None:
        self.layouts = [layout.copy() for layout in self.layouts]
        self._planned = [layout.copy() for layout in self.layouts]
        self._coming = [[] for _ in self.layouts]
        margin = self.system.margin
        self._classes = [
            Classes(int(at.resident.sum()), int((at.striped & ~at.resident).sum()), margin, SKEW)
            for at in self.layouts
        ]
        window = self.window
        self._lanes = idle_lanes(
            self.costs, window.window_ns, window.link_ns, window.carry, window.space
        )
        for layout in self.layouts:
            local = layout.dimm >= 0
            np.subtract.at(self._lanes.space, layout.dimm[local], 1.0)
            self._lanes.space[:] -= layout.striped.sum() / self.costs.dimms

    def step(self, loads: Ints) -> Step:
        """One decode step with `loads[layer, expert]`."""
        layers = len(self.layouts)
        found = Step(
            np.zeros(layers), np.zeros((layers, num_resources(self.costs))), np.zeros(3, np.int64)
        )
        for layer in range(layers):
            self._migrate(layer, found)
            self._pass(self.window.window_ns)
            self._arrive(layer)
            _, problem = self.layouts[layer].active(self.costs, loads[layer], self._base())
            options = options_of(self.costs, problem, self.system.devices)
            choice = self.system.choose(options, problem.loads, problem.resident)
            found.busy_ns[layer] = busy_times(options, choice)
            found.makespan_ns[layer] = found.busy_ns[layer].max()
            self._pass(found.makespan_ns[layer])
            self.predictor.observe(layer, loads[layer])
        return found

    def _migrate(self, number: int, step: Step) -> None:
        kinds = self.system.kinds
        if not kinds.any():
            return
        predicted = self.predictor.loads[number].astype(np.float64)
        ceiling = np.minimum(np.ceil(predicted), self.costs.tokens).astype(np.int64)
        layout = self._planned[number]
        layer = Layer(np.maximum(ceiling, 1), *layout, np.zeros(num_resources(self.costs)))
        moves = np.zeros((MAX_MOVES, MOVE_WORDS), dtype=np.int64)
        if self.system.by_classes:
            count = plan_class_moves(
                self.costs, layer, predicted, np.zeros(len(predicted), dtype=np.bool_),
                self._lanes, kinds, self._classes[number], moves,
            )  # fmt: skip
        else:
            count = plan_moves(
                self.costs, layer, predicted, self.system.devices, self._lanes, kinds, moves
            )
        for kind, expert, to, victim in moves[:count].tolist():
            step.moves[kind] += 1
            lane = 0 if to == IN_HBM else 1 + max(to, 0)
            if to < 0 and to != IN_HBM:
                lane = 1 + int(self.layouts[number].dimm[expert])
            ends = self._lanes.free_ns[lane]
            self._coming[number].append(_Move(self._now_ns + float(ends), expert, to))
            if victim >= 0:
                self.layouts[number].resident[victim] = False

    def _pass(self, ns: float) -> None:
        self._now_ns += ns
        self._lanes.free_ns[:] -= ns
        np.maximum(self._lanes.free_ns, 0.0, out=self._lanes.free_ns)

    def _arrive(self, number: int) -> None:
        if not self._coming[number]:
            return
        layout = self.layouts[number]
        layer = Layer(np.zeros(0, np.int64), *layout, np.zeros(0))
        for move in self._coming[number]:
            if move.ends_ns <= self._now_ns:
                place(layer, move.expert, move.to)
        self._coming[number] = [m for m in self._coming[number] if m.ends_ns > self._now_ns]

    def _base(self) -> Floats:
        """What moves still under way occupy of the layer: PCIe and the host's read for it, as of
        stripes, and the DIMMs' own reads."""
        costs, base = self.costs, np.zeros(num_resources(self.costs))
        base[PCIE_TIME] = self._lanes.free_ns[0]
        add_read(costs, base, True, NO_DIMM, 1)
        base[FIRST_DIMM:] *= self._lanes.free_ns[0] / costs.pcie_ns
        if costs.shared:
            base[CPU_TIME] = costs.channel_ns * self._lanes.free_ns[0] / costs.pcie_ns
        if costs.localized_busy_ns > 0:
            share = self._lanes.free_ns[1:] / self.window.link_ns
            base[FIRST_DIMM : FIRST_DIMM + costs.dimms] += share * costs.internal_ns
        return base


def replay(
    system: TriSystem,
    costs: TriCosts,
    layouts: Sequence[Layout],
    window: Window,
    alpha: float = ALPHA,
    profile: Floats | None = None,
) -> Replay:
    """`profile[layer, expert]`: mean loads known before the first step."""
    experts = len(layouts[0].dimm)
    predictor = LoadPredictor(len(layouts), experts, alpha)
    if profile is not None:
        predictor.start(profile)
    return Replay(system, costs, list(layouts), window, predictor)
