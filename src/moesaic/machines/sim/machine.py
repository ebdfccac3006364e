"""The simulated machine: executes plans on lanes in virtual time. It decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Protocol

import numpy as np

from moesaic.core.body import Decider
from moesaic.core.capabilities import Capabilities
from moesaic.core.layer_plan import PARTS, LayerPlan, Move
from moesaic.core.offloading import CPU, GPU, IN_DRAM, PCIE, VRAM
from moesaic.core.report import LayerReport, Span, StepReport, Timeline
from moesaic.core.residency import Residency
from moesaic.core.routing import ExpertId, Forecast, LayerRouting
from moesaic.core.step import Step
from moesaic.core.topology import Topology
from moesaic.core.units import ns_from_us, slowed_by
from moesaic.core.view import PLANNER, View
from moesaic.hardware.link_use import USUAL_USE
from moesaic.machines.loop import run_layers
from moesaic.machines.sim.clock import Clock
from moesaic.machines.sim.kv_cache import IN_GPU_MEMORY, KvCache
from moesaic.machines.sim.lane import Draws, Task
from moesaic.machines.sim.moving import Moves, Moving
from moesaic.machines.sim.ndp.draws import DimmDraws
from moesaic.machines.sim.physics import Physics
from moesaic.machines.sim.planning_cost import FREE, PlanningCost
from moesaic.machines.sim.wiring import caches_of, lanes_of, time_beside_copies

STAGING = 2  # experts used once are double-buffered: one computes while the next arrives

Slots = int | Mapping[str, int | None]


SIMULATED = Capabilities(
    devices=(GPU, CPU),
    moves=True,
    prefetch=True,
    true_gates=False,  # it forecasts what the trace has recorded
    dense_follows=True,
    virtual_time=True,
)


class RoutedStep(Protocol):
    """What a simulated machine is given to do: a step, and its routing in every layer."""

    @property
    def step(self) -> Step: ...

    def layer(self, layer: int) -> LayerRouting: ...


class SimMachine:
    """Devices and links as lanes. Implements `core.body.Body`, driven layer by layer.

    `slots` is how many experts the accelerator's memory holds, or that of several memories by
    name (None: all of them); others hold what their capacity allows. `dense_on[layer]` names the
    device of a layer's attention and shared experts (the first); `planning` is what the brain's
    decisions cost in virtual time; `kv_cache` is where that lies (kv_cache.py)."""

    def __init__(
        self,
        physics: Physics,
        slots: Slots,
        timeline: Timeline | None = None,
        dense_on: Sequence[str] | None = None,
        planning: PlanningCost = FREE,
        kv_cache: str = IN_GPU_MEMORY,
    ) -> None:
        model = physics.model
        self.physics, self.topology, self.planning = physics, physics.topology, planning
        devices = tuple(device.name for device in self.topology.devices)
        self.capabilities = replace(SIMULATED, devices=devices)
        self.timeline = timeline if timeline is not None else Timeline(enabled=False)
        self.clock = Clock()
        caches = caches_of(physics.machine, physics.expert_dtype)
        self.lanes = lanes_of(physics.machine, self.topology, self.clock, self.timeline, caches)
        self.memory = Residency(
            self.topology,
            model.num_moe_layers,
            model.num_experts,
            _memory_slots(self.topology, slots, physics.expert_bytes),
        )
        self._dimms = DimmDraws(physics, self.clock) if physics.machine.dimms else None
        self._use = physics.machine.pcie_use or USUAL_USE
        self.moves = Moves(physics, self.memory, self.lanes, self.clock, self._dimms, caches)
        self._kv = KvCache(kv_cache, physics, self.lanes, self._dimms)
        self.planning_ns = 0
        self._dense_device = self.topology.devices[0].name
        self._dense_on = dense_on or [self._dense_device] * model.num_moe_layers
        self._dense_devices = {self._dense_device, *self._dense_on}
        self._routed = 0  # layers so far
        self._steps = -1  # the number of the step under way
        self._lookahead_ns = 0  # of the layer that was started last
        self._on_cpu: Task | None = None  # its last expert there
        self._expert_costs: dict[tuple[str, int, int, int], int] = {}
        self._expert_draws: dict[tuple[str, int, int, int, int], Draws] = {}
        self._first_ns = {d.name: physics.first_ns(d.name) for d in self.topology.devices}
        self._dense_before = _dense_layers_before(model.moe_layers, model.num_layers)

    def step(self, work: RoutedStep, brain: Decider) -> StepReport:
        self.begin(work.step, work.layer)
        return run_layers(self, brain, self.physics.model.num_moe_layers)

    @property
    def bytes_moved(self) -> int:
        """The bytes moved over all links since the beginning."""
        return self.moves.under_way.bytes_moved

    def begin(self, step: Step, route: Callable[[int], LayerRouting]) -> None:
        self._step, self._route = step, route
        self._steps += 1
        self._step_start = self.clock.now
        self._kv.begin(step)
        self._dense_costs = {d: self._dense_ns(d) for d in self._dense_devices}
        self._reports: list[LayerReport] = []

    def route(self, layer: int) -> LayerRouting:
        """Dense layers in between, then this layer's attention and router; the shared experts
        are handed to their device and run in parallel with the routed ones."""
        device = self._dense_on[layer]
        whole_layer, attention, shared = self._dense_costs[device]
        for _ in range(self._dense_before[layer]):
            self._attend(device, Task("dense", whole_layer))
        self._attend(device, Task("dense", attention, layer, tokens=self._step.tokens))
        self._shared = Task("dense", shared, layer, tokens=self._step.tokens) if shared else None
        if self._shared is not None:
            self.lanes[device].submit(self._shared)
        self._hand_over()
        self._routed += 1
        self.moves.cancel_background()  # from here on the view must stay true
        self._routing = self._route(layer).at_step(self._steps)
        return self._routing

    def _hand_over(self) -> None:
        """Flags between GPU and CPU travel over the same link as copies."""
        copying = self.lanes[PCIE].running
        if copying is not None:
            use = self._use
            taken = use.cached_handover_us if copying.cached else use.busy_handover_us
            if taken:  # what ends just now ends after background copies are cancelled
                self.clock.advance(ns_from_us(taken))

    def view(self, layer: int) -> View:
        self.clock.settle()  # for what has just begun
        busy = [self.lanes[name].queued_ns() for name in self.topology.lanes]
        return View.of(self.memory, self.moves.in_flight(), busy)

    def start(self, plan: LayerPlan) -> None:
        resident = self.memory.resident[plan.layer].tolist()
        served = [expert for queue in plan.queues.values() for expert in queue]
        hits = sum(resident[expert] for expert in served)
        coming = sum(
            m.move.layer == plan.layer and m.move.expert in served for m in self.moves.under_way
        )
        work = self._routing.num_tokens, len(served)
        planning_ns = self.planning.decision_ns(*work)
        self._lookahead_ns = self.planning.lookahead_ns(*work)
        self.planning_ns += planning_ns
        self._advance_planning(plan.layer, planning_ns)
        moved = self.moves.bytes_of(plan.transfers)
        now = self.clock.now
        self._started = LayerReport(plan.layer, now, now, len(served), hits, moved, coming)
        self._pending = self._submit(plan)
        self._kv.read_ahead()

    prefetches = True

    @property
    def can_forecast(self) -> bool:
        return bool(self._routing.forecasts)

    def forecasts(self, depth: int) -> tuple[Forecast, ...]:
        return self._routing.forecasts[:depth]

    def offer(self, background: tuple[Move, ...]) -> None:
        lookahead_ns = self._lookahead_ns
        self._run_lookahead(lookahead_ns)
        if not background:
            return
        routed = self._routed

        def decided() -> None:
            if routed == self._routed:  # else the next layer came first
                self.moves.offer(background)

        if lookahead_ns:
            self.clock.at(self.clock.now + lookahead_ns, decided)
        else:
            decided()

    def _run_lookahead(self, lookahead_ns: int) -> None:
        """The look-ahead takes its share of the host, where that is scarce; the thread
        that drives the layer computes it, so the layer does not end before."""
        if PLANNER in self.lanes and lookahead_ns:
            thinking = Task("plan", lookahead_ns, self._started.layer)
            self.lanes[PLANNER].submit(thinking)
            self._pending.append(thinking)

    def wait(self) -> LayerReport:
        for task in self._pending:
            self._until_done(task)
        last = self._on_cpu
        cpu_ns = 0 if last is None else last.end_ns - self._started.start_ns
        report = self._started._replace(end_ns=self.clock.now, cpu_ns=cpu_ns)
        self._reports.append(report)
        return report

    def run(self, plan: LayerPlan) -> LayerReport:
        """A whole plan at once, background included."""
        self.start(plan)
        self.offer(plan.background)
        return self.wait()

    def finish(self) -> StepReport:
        step, device = self._step, self._dense_device
        for _ in range(self._dense_before[-1]):
            self._attend(device, Task("dense", self._dense_costs[device][0]))
        head = Task("dense", self.physics.head_ns(step.num_sequences), tokens=step.num_sequences)
        self._do_now(device, head)
        return StepReport(self._step_start, self.clock.now, step.tokens, tuple(self._reports))

    def probe(self, device: str, tokens: int, experts: int, placement: str | None = None) -> int:
        parts = PARTS
        if placement is not None:  # of a split expert, the device's own part
            topology = self.topology
            at, of = topology.device(device), topology.placement(placement)
            parts = -(-PARTS // topology.share_of(at, of)[1])
        if parts == PARTS and self.topology.device(device) == 0:
            return experts * self.physics.probed_ns(device, tokens, placement)
        expert_ns = self.physics.expert_ns(device, tokens, placement, parts)
        return self._first_ns[device] + experts * expert_ns

    def probe_slowdown(self, device: str) -> int:
        alone = self.probe(device, 1, 2)
        return slowed_by(alone, time_beside_copies(self.physics.machine, device, alone))

    def probe_transfer(self, link: str | None = None) -> int:
        return self.physics.move_ns(self.topology.links[0].name if link is None else link)

    def probe_move(self, source: str, destination: str) -> int:
        """Nanoseconds one expert takes from a placement to another, alone."""
        topology = self.topology
        return self.moves.alone_ns(topology.placement(source), topology.placement(destination))

    def fill_main_memory(self) -> None:
        """Stripe what was placed in no DIMM, where main memory is DIMMs."""
        if self.physics.machine.dimms is None:
            return
        placed = self.memory.located[IN_DRAM:].any(axis=0)
        missing = [ExpertId(layer, expert) for layer, expert in np.argwhere(~placed).tolist()]
        self.memory.place(missing, IN_DRAM)

    def _dense_ns(self, device: str) -> tuple[int, int, int]:
        """A layer without experts, a MoE layer's attention, its shared experts; this step."""
        physics, step = self.physics, self._kv.seen_by(device, self._step)
        shared = physics.shared_ns(device, step.tokens)
        return physics.dense_layer_ns(device, step), physics.attention_ns(device, step), shared

    def _attend(self, device: str, task: Task) -> None:
        """Attention, with what it reads or leaves elsewhere."""
        wanted = self._kv.wanted(device)
        self._do_now(device, task)
        for other in (wanted, self._kv.rest(device)):
            if other is not None:
                self._until_done(other)

    def _do_now(self, device: str, task: Task) -> None:
        self.lanes[device].submit(task)
        self._until_done(task)

    def _until_done(self, task: Task) -> None:
        while not task.done:
            self.clock.step()

    def _submit(self, plan: LayerPlan) -> list[Task]:
        """Queue everything in the plan; returns the tasks the layer must wait for."""
        self.moves.on_cpu = {(plan.layer, expert) for expert in plan.queues.get(CPU, ())}
        moves = [self.moves.prepare("transfer", move) for move in plan.transfers]
        if moves:
            moves[0].tasks[0][1].duration += ns_from_us(self._use.demand_us)
        coming = self.moves.under_way.to_layer(plan.layer)
        arrivals = {(m.move.expert, m.move.destination): m for m in (*moves, *coming)}
        loads = self._routing.loads(self.physics.model.num_experts).tolist()
        located: list[list[int]] = [[] for _ in loads]
        for place, expert in np.argwhere(self.memory.located[:, plan.layer]).tolist():
            located[expert].append(place)
        queues = {
            device: self._expert_tasks(plan, device, loads, located, arrivals)
            for device in plan.queues
        }
        for device, tasks in queues.items():
            for task in tasks:
                self.lanes[device].submit(task)
        for moving in moves:
            moving.submit()
        last = [tasks[-1] for tasks in queues.values() if tasks]
        self._on_cpu = queues[CPU][-1] if queues.get(CPU) else None
        return last if self._shared is None else [*last, self._shared]

    def _advance_planning(self, layer: int, duration: int) -> None:
        start = self.clock.now
        self.clock.advance(duration)
        if duration and self.timeline.enabled:
            self.timeline.add(Span(PLANNER, "plan", start, self.clock.now, layer, -1, 0))

    def _expert_tasks(
        self,
        plan: LayerPlan,
        device: str,
        loads: list[int],
        located: list[list[int]],
        arrivals: Mapping[tuple[int, int], Moving],
    ) -> list[Task]:
        """A device's queue, each waiting for its weights where they are under way.
        `located[expert]` are the placements in which it lies."""
        tasks: list[Task] = []
        staged: list[Task] = []
        reads = self.topology.reads[self.topology.device_index[device]]
        for expert in plan.queues[device]:
            parts = plan.parts[expert][device] if expert in plan.parts else PARTS
            there = [p for p in located[expert] if p in reads]
            arrival: Moving | None = None
            if not there:
                coming = [arrivals[expert, p] for p in reads if (expert, p) in arrivals]
                assert coming, f"expert {expert} is nowhere the {device} could read it"
                arrival = coming[0]
                there = [arrival.move.destination]
            tokens = loads[expert]
            cost, where = min([(self._expert_ns(device, tokens, p, parts), p) for p in there])
            cost += 0 if tasks else self._first_ns[device]
            task = Task("expert", cost, plan.layer, expert, tokens)
            if self._dimms is not None:
                task.draws = self._draws(self._dimms, (device, tokens, where, parts, cost))
            if arrival is not None:
                _wait_for(task, arrival, staged)
            tasks.append(task)
        return tasks

    def _draws(self, dimms: DimmDraws, key: tuple[str, int, int, int, int]) -> Draws:
        """What an expert's task takes of the DIMMs and their channels."""
        draws = self._expert_draws.get(key)
        if draws is None:
            device, tokens, placement, parts, cost = key
            name = self.topology.placements[placement].name
            draws = dimms.expert(device, name, tokens, parts, cost)
            self._expert_draws[key] = draws
        return draws

    def _expert_ns(self, device: str, tokens: int, placement: int, parts: int) -> int:
        key = (device, tokens, placement, parts)
        cost = self._expert_costs.get(key)
        if cost is None:
            name = self.topology.placements[placement].name
            cost = self._expert_costs[key] = self.physics.expert_ns(device, tokens, name, parts)
        return cost


def _wait_for(task: Task, arrival: Moving, staged: list[Task]) -> None:
    """An expert used once takes the place of the one staged `STAGING` before it."""
    for _, part in arrival.tasks:
        task.after(part)
    if arrival.kind == "transfer" and not arrival.move.keep:
        if len(staged) >= STAGING:
            for _, part in arrival.tasks:
                part.after(staged[-STAGING])
        staged.append(task)


def _memory_slots(topology: Topology, given: Slots, expert_bytes: int) -> list[int | None]:
    by_name = {VRAM: given} if isinstance(given, int) else given
    slots: list[int | None] = []
    for memory in topology.memories:
        size = memory.capacity_bytes
        slots.append(by_name.get(memory.name, None if size is None else size // expert_bytes))
    return slots


def _dense_layers_before(moe_layers: tuple[int, ...], num_layers: int) -> list[int]:
    """How many layers without routed experts precede each MoE layer; last, how many follow."""
    edges = (-1, *moe_layers, num_layers)
    return [after - before - 1 for before, after in pairwise(edges)]
