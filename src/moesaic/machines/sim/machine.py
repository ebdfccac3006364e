"""The simulated machine: executes plans on lanes in virtual time. It decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from moesaic.core.body import Step
from moesaic.core.layer_plan import LayerPlan, Transfer
from moesaic.core.report import LayerReport, Span, StepReport, Timeline
from moesaic.core.residency import Residency
from moesaic.core.routing import LayerRouting
from moesaic.core.view import CPU, GPU, PCIE, PLANNER, Flight, View
from moesaic.hardware.spec import HostSpec
from moesaic.machines.sim.clock import Clock
from moesaic.machines.sim.lane import Lane, Task
from moesaic.machines.sim.physics import Physics
from moesaic.machines.sim.sharing import WHOLE, Pool, SharingLane

STAGING = 2  # experts used once are double-buffered: one computes while the next arrives


class SimMachine:
    """A GPU, a CPU and a link as lanes. Implements `core.machine.Body`; begin a step with
    `begin(step, route)`, where `route(layer)` gives the routing a trace recorded.

    `dense_on[layer]` names the device of a layer's attention and shared experts (the GPU)."""

    def __init__(
        self,
        physics: Physics,
        slots: int,
        timeline: Timeline | None = None,
        dense_on: Sequence[str] | None = None,
    ) -> None:
        model = physics.model
        self.physics = physics
        self.timeline = timeline if timeline is not None else Timeline(enabled=False)
        self.clock = Clock()
        self.lanes = _lanes(physics.machine.host, self.clock, self.timeline)
        self.memory = Residency(model.num_moe_layers, model.num_experts, slots)
        self.bytes_moved = 0
        self.planning_ns = 0
        self._dense_on = dense_on if dense_on is not None else [GPU] * model.num_moe_layers
        self._dense_devices = {GPU, *self._dense_on}
        self._flight: tuple[Transfer, Task] | None = None
        self._routed = 0  # layers so far
        self._steps = -1  # the number of the step under way
        self._expert_costs: dict[tuple[str, int], int] = {}
        self._transfer_ns, self._expert_bytes = physics.transfer_ns, physics.expert_bytes
        self._dense_before = _dense_layers_before(model.moe_layers, model.num_layers)

    def begin(self, step: Step, route: Callable[[int], LayerRouting]) -> None:
        self._step, self._route = step, route
        self._steps += 1
        self._step_start = self.clock.now
        self._dense_costs = {d: self._dense_ns(d) for d in self._dense_devices}
        self._reports: list[LayerReport] = []

    def route(self, layer: int) -> LayerRouting:
        """Dense layers in between, then this layer's attention and router; the shared experts
        are handed to their device and run beside the routed ones."""
        device = self._dense_on[layer]
        whole_layer, attention, shared = self._dense_costs[device]
        for _ in range(self._dense_before[layer]):
            self._do_now(device, Task("dense", whole_layer))
        self._do_now(device, Task("dense", attention, layer, tokens=self._step.tokens))
        self._shared = Task("dense", shared, layer, tokens=self._step.tokens) if shared else None
        if self._shared is not None:
            self.lanes[device].submit(self._shared)
        self._routed += 1
        self.lanes[PCIE].replace_background(())  # from here on the view must stay true
        self._routing = self._route(layer).at_step(self._steps)
        return self._routing

    def view(self, layer: int) -> View:
        flights: tuple[Flight, ...] = ()
        if self._flight is not None:
            transfer, task = self._flight
            flights = (Flight(transfer.layer, transfer.expert, task.end_ns - self.clock.now),)
        return View(
            resident=self.memory.resident,
            slots=self.memory.slots,
            held=self.memory.held,
            occupied=self.memory.occupied,
            in_flight=flights,
            gpu_busy_ns=self.lanes[GPU].queued_ns(),
            cpu_busy_ns=self.lanes[CPU].queued_ns(),
            pcie_busy_ns=self.lanes[PCIE].remaining_ns,
        )

    def start(self, plan: LayerPlan, planning_ns: int) -> None:
        resident = self.memory.resident[plan.layer].tolist()
        served = [expert for queue in plan.queues.values() for expert in queue]
        hits = sum(resident[expert] for expert in served)
        flight = self._flight[0] if self._flight is not None else None
        coming = int(flight is not None and flight.layer == plan.layer and flight.expert in served)
        self.planning_ns += planning_ns
        self._advance_planning(plan.layer, planning_ns)
        moved = len(plan.transfers) * self._expert_bytes
        now = self.clock.now
        self._started = LayerReport(plan.layer, now, now, len(served), hits, moved, coming)
        self._pending = self._submit(plan)

    def offer(self, background: tuple[Transfer, ...], lookahead_ns: int) -> None:
        self._think(lookahead_ns)
        if not background:
            return
        routed = self._routed

        def decided() -> None:
            if routed == self._routed:  # else the next layer came first
                tasks = [self._transfer_task("prefetch", t) for t in background]
                self.lanes[PCIE].replace_background(tasks)

        if lookahead_ns:
            self.clock.at(self.clock.now + lookahead_ns, decided)
        else:
            decided()

    def _think(self, lookahead_ns: int) -> None:
        """The look-ahead takes its share of the host, where that is scarce; whoever conducts the
        layer is who thinks, so the layer is not over before."""
        if PLANNER in self.lanes and lookahead_ns:
            thinking = Task("plan", lookahead_ns, self._started.layer)
            self.lanes[PLANNER].submit(thinking)
            self._pending.append(thinking)

    def wait(self) -> LayerReport:
        for task in self._pending:
            while not task.done:
                self.clock.step()
        report = self._started._replace(end_ns=self.clock.now)
        self._reports.append(report)
        return report

    def run(self, plan: LayerPlan, planning_ns: int = 0, lookahead_ns: int = 0) -> LayerReport:
        """A whole plan at once, background included."""
        self.start(plan, planning_ns)
        self.offer(plan.background, lookahead_ns)
        return self.wait()

    def finish(self) -> StepReport:
        step = self._step
        for _ in range(self._dense_before[-1]):
            self._do_now(GPU, Task("dense", self._dense_costs[GPU][0]))
        head = Task("dense", self.physics.head_ns(step.sequences), tokens=step.sequences)
        self._do_now(GPU, head)
        return StepReport(self._step_start, self.clock.now, step.tokens, tuple(self._reports))

    def probe(self, device: str, tokens: int, experts: int) -> int:
        first = self.physics.cpu_first_ns if device == CPU else 0
        return first + experts * self.physics.expert_ns(device, tokens)

    def probe_transfer(self) -> int:
        return self.physics.transfer_ns

    def _dense_ns(self, device: str) -> tuple[int, int, int]:
        """A layer without experts, a MoE layer's attention, its shared experts; this step."""
        physics, step = self.physics, self._step
        shared = physics.shared_ns(device, step.tokens)
        return physics.dense_layer_ns(device, step), physics.attention_ns(device, step), shared

    def _do_now(self, device: str, task: Task) -> None:
        self.lanes[device].submit(task)
        while not task.done:
            self.clock.step()

    def _submit(self, plan: LayerPlan) -> list[Task]:
        """Queue everything in the plan; returns the tasks the layer must wait for."""
        moves = [self._transfer_task("transfer", transfer) for transfer in plan.transfers]
        arrivals = {
            transfer.expert: task for transfer, task in zip(plan.transfers, moves, strict=True)
        }
        if self._flight is not None and self._flight[0].layer == plan.layer:
            arrivals[self._flight[0].expert] = self._flight[1]
        loads = self._routing.loads(self.physics.model.num_experts).tolist()
        queues = {
            device: self._expert_tasks(plan.layer, device, experts, loads)
            for device, experts in plan.queues.items()
        }
        staged: list[Task] = []
        for task in queues.get(GPU, ()):
            arrival = arrivals.get(task.expert)
            if arrival is None:
                continue
            task.after(arrival)
            if arrival.kind == "transfer" and not plan.transfers[moves.index(arrival)].keep:
                if len(staged) >= STAGING:
                    arrival.after(staged[-STAGING])
                staged.append(task)
        for device, tasks in queues.items():
            for task in tasks:
                self.lanes[device].submit(task)
        for task in moves:
            self.lanes[PCIE].submit(task)
        last = [tasks[-1] for tasks in queues.values() if tasks]
        return last if self._shared is None else [*last, self._shared]

    def _advance_planning(self, layer: int, duration: int) -> None:
        start = self.clock.now
        self.clock.advance(duration)
        if duration and self.timeline.enabled:
            self.timeline.add(Span(PLANNER, "plan", start, self.clock.now, layer, -1, 0))

    def _expert_tasks(
        self, layer: int, device: str, experts: tuple[int, ...], loads: list[int]
    ) -> list[Task]:
        tasks: list[Task] = []
        for expert in experts:
            cost = self._expert_ns(device, loads[expert])
            if device == CPU and not tasks:
                cost += self.physics.cpu_first_ns
            tasks.append(Task("expert", cost, layer, expert, loads[expert]))
        return tasks

    def _expert_ns(self, device: str, tokens: int) -> int:
        key = (device, tokens)
        cost = self._expert_costs.get(key)
        if cost is None:
            cost = self._expert_costs[key] = self.physics.expert_ns(device, tokens)
        return cost

    def _transfer_task(self, kind: str, transfer: Transfer) -> Task:
        task = Task(kind, self._transfer_ns, transfer.layer, transfer.expert)

        def started() -> None:
            self.memory.start(transfer)
            self.bytes_moved += self._expert_bytes
            self._flight = (transfer, task)

        def ended() -> None:
            self.memory.complete(transfer)
            self._flight = None

        task.on_start, task.on_end = started, ended
        return task


def _lanes(host: HostSpec | None, clock: Clock, timeline: Timeline) -> dict[str, Lane]:
    """One per device and for the link; where they share a host, they feel each other, and so
    they feel the planner."""
    if host is None:
        return {name: Lane(name, clock, timeline) for name in (GPU, CPU, PCIE)}
    pool = Pool()
    shares = {
        GPU: host.gpu_share,
        CPU: host.cpu_share,
        PCIE: host.link_share,
        PLANNER: host.planner_share,
    }
    return {
        name: SharingLane(name, clock, timeline, pool, round(share * WHOLE))
        for name, share in shares.items()
    }


def _dense_layers_before(moe_layers: tuple[int, ...], num_layers: int) -> list[int]:
    """How many layers without routed experts precede each MoE layer; last, how many follow."""
    edges = (-1, *moe_layers, num_layers)
    return [after - before - 1 for before, after in pairwise(edges)]
