"""Decode steps by the makespan model alone: predict, migrate, schedule, layer after layer.

Much faster than a simulation, and with nothing in it but equations 1 to 8 and the lanes of the
moves: a clock of its own, no machine. The policies are those of a system; what they are asked is
what a brain asks them. A move becomes effective when it has arrived; until then the expert is where
it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from moesaic.policies.layout import layouts
from moesaic.policies.layout.trimoe import TriMoeLayout
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.schedule import schedules
from moesaic.policies.schedule.tri import TriSchedule
from moesaic.policies.tri.costs import Floats, TriCosts
from moesaic.policies.tri.layer import (
    CPU_TIME,
    FIRST_DIMM,
    NO_DIMM,
    PCIE_TIME,
    Ints,
    Layer,
    Options,
    Places,
    add_read,
    busy_times,
    num_resources,
    options_of,
)
from moesaic.policies.tri.migrate import IN_HBM, Lanes, idle_lanes, place


@dataclass(frozen=True, slots=True)
class Window:
    """Time between layers in which the GPU computes attention and MLP, and what a move takes."""

    window_ns: float
    link_ns: float  # one expert over one DIMM-Link
    carry: bool = True
    space: float = np.inf  # experts of all layers that fit into one DIMM


class _ComingMove(NamedTuple):
    ends_ns: float
    expert: int
    to: int


@dataclass(slots=True)
class ReplayedStep:
    """`makespan_ns[layer]`; `busy_ns[layer, resource]`, of which `moving_ns` is what moves under
    way occupied."""

    makespan_ns: Floats
    busy_ns: Floats
    moving_ns: Floats
    moves: Ints  # [kinds]


@dataclass(slots=True)
class Replay:
    """`places` are each layer's, and change; `fixed_ns[resource]` is what every layer takes beside
    its routed experts. The layout's devices are the system's. With `highest_first` a schedule meets
    its experts by falling load, as in the brain: which of several equally expensive ones the
    refinement tries first decides where it ends."""

    schedule: TriSchedule
    layout: TriMoeLayout
    costs: TriCosts
    places: list[Places]
    window: Window
    fixed_ns: Floats | None = None
    highest_first: bool = False
    _planned: list[Places] = field(init=False)
    _coming: list[list[_ComingMove]] = field(init=False)
    _lanes: Lanes = field(init=False)
    _now_ns: float = 0.0

    def __post_init__(self) -> None:
        self.places = [places.copy() for places in self.places]
        self._planned = [places.copy() for places in self.places]
        self._coming = [[] for _ in self.places]
        window = self.window
        self._lanes = idle_lanes(
            self.costs, window.window_ns, window.link_ns, window.carry, window.space
        )
        for places in self.places:
            local = places.dimm >= 0
            np.subtract.at(self._lanes.space, places.dimm[local], 1.0)
            self._lanes.space[:] -= places.striped.sum() / self.costs.dimms

    def step(self, loads: Ints) -> ReplayedStep:
        """One decode step with `loads[layer, expert]`."""
        shape = (len(self.places), num_resources(self.costs))
        found = ReplayedStep(
            np.zeros(shape[0]), np.zeros(shape), np.zeros(shape), np.zeros(3, np.int64)
        )
        for layer in range(len(self.places)):
            self._migrate(layer, found)
            self._pass(self.window.window_ns)
            self._arrive(layer)
            moving = found.moving_ns[layer] = self._moving_ns()
            base = moving if self.fixed_ns is None else moving + self.fixed_ns
            _, problem = self.places[layer].active(self.costs, loads[layer], base)
            options = options_of(self.costs, problem, self.layout.devices)
            found.busy_ns[layer] = busy_times(options, self._choice(options, problem))
            found.makespan_ns[layer] = found.busy_ns[layer].max()
            self._pass(found.makespan_ns[layer])
            self.layout.observe(layer, loads[layer])
        return found

    def _choice(self, options: Options, problem: Layer) -> Ints:
        loads, resident = problem.loads, problem.resident
        if not self.highest_first:
            return self.schedule.choose(options, loads, resident)
        order = np.argsort(-loads, kind="stable")
        ordered = Options(options.use[order], options.time[order], options.base)
        choice = np.empty_like(order)
        choice[order] = self.schedule.choose(ordered, loads[order], resident[order])
        return choice

    def _migrate(self, number: int, step: ReplayedStep) -> None:
        places, planned = self.places[number], self._planned[number]
        nothing = np.zeros(len(places.dimm), dtype=np.bool_)
        moves = self.layout.plan(number, self.costs, planned, nothing, self._lanes)
        for kind, expert, to, victim in moves.tolist():
            step.moves[kind] += 1
            lane = 0 if to == IN_HBM else 1 + max(to, 0)
            if to < 0 and to != IN_HBM:
                lane = 1 + int(places.dimm[expert])
            ends = self._now_ns + float(self._lanes.free_ns[lane])
            self._coming[number].append(_ComingMove(ends, expert, to))
            if victim >= 0:
                places.resident[victim] = False

    def _pass(self, ns: float) -> None:
        self._now_ns += ns
        self._lanes.free_ns[:] -= ns
        np.maximum(self._lanes.free_ns, 0.0, out=self._lanes.free_ns)

    def _arrive(self, number: int) -> None:
        if not self._coming[number]:
            return
        layer = Layer(np.zeros(0, np.int64), *self.places[number], np.zeros(0))
        for move in self._coming[number]:
            if move.ends_ns <= self._now_ns:
                place(layer, move.expert, move.to)
        self._coming[number] = [m for m in self._coming[number] if m.ends_ns > self._now_ns]

    def _moving_ns(self) -> Floats:
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
    policies: PolicySet,
    costs: TriCosts,
    places: Sequence[Places],
    window: Window,
    profile: Floats | None = None,
    *,
    fixed_ns: Floats | None = None,
    highest_first: bool = False,
) -> Replay:
    """A system on these layers. `profile[layer, expert]`: mean loads known before the first
    step."""
    schedule = policies.schedule.create(schedules)
    layout = policies.layout.create(layouts, len(places), len(places[0].dimm))
    assert isinstance(schedule, TriSchedule), "a schedule over three devices"
    assert isinstance(layout, TriMoeLayout), "the layout of every system of the study"
    resident = np.stack([layer.resident for layer in places])
    layout.start(resident, np.stack([layer.striped for layer in places]), profile)
    return Replay(schedule, layout, costs, list(places), window, fixed_ns, highest_first)
