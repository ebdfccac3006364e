"""A simulated machine that computes: plans are executed in virtual time by the simulator, and every
expert's arithmetic is done here, as the device that the plan gives it to would do it.

So a model can be run on a machine that does not exist, three compute domains for example: tokens
are real, durations are those of the description."""

from __future__ import annotations

import torch
from near_data_arithmetic import ALL, NearDataArithmetic

from moesaic.core.layer_plan import PARTS, LayerPlan, Move
from moesaic.core.report import LayerReport
from moesaic.core.routing import LayerRouting
from moesaic.core.view import View
from moesaic.hardware.dimms import NdpDevice
from moesaic.kernels.grouping import group_by_expert
from moesaic.kernels.reference import ReferenceKernel
from moesaic.machines.layerwise.layerwise import Layerwise
from moesaic.machines.real.executor import Network
from moesaic.machines.real.forward_pass import ForwardPass
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.machine import SIMULATED
from moesaic.models.experts.expert_service import RoutedTokens


class VirtualLayers(Layerwise):
    """`clock` is the simulated machine; its model must be the network's. Experts that a unit of a
    DIMM computes get the unit's arithmetic, all others the reference kernel's."""

    capabilities = SIMULATED

    def __init__(self, network: Network, sim: SimMachine) -> None:
        kernel = network.store.kernel
        assert isinstance(kernel, ReferenceKernel), "load the experts with kernel='reference'"
        super().__init__(network, sim.memory, sim.timeline)
        self.sim, self._kernel = sim, kernel
        machine = sim.physics.machine
        self._units = {n for n, d in machine.flat.devices.items() if isinstance(d, NdpDevice)}
        self._near_data = NearDataArithmetic(kernel) if self._units else None
        self.computed: dict[str, int] = {}  # device -> experts so far

    def _begin(self, number: int, work: ForwardPass) -> None:
        super()._begin(number, work)
        self.sim.begin(work.step, lambda layer: self._routing)

    def _route(self, routed: RoutedTokens) -> LayerRouting:
        super()._route(routed)
        return self.sim.route(routed.layer)

    def view(self, layer: int) -> View:
        return self.sim.view(layer)

    def start(self, plan: LayerPlan) -> None:
        for parts in plan.parts.values():
            assert parts.keys() <= self._units, "only units of DIMMs compute parts of an expert"
        self.sim.start(plan)
        self._total = self._compute(plan)

    def offer(self, background: tuple[Move, ...]) -> None:
        self.sim.offer(background)

    def wait(self) -> LayerReport:
        report = self.sim.wait()
        self._reports.append(report)
        return report

    def _finish(self) -> None:
        super()._finish()
        self._step_report = self.sim.finish()

    def probe(self, device: str, tokens: int, experts: int, placement: str | None = None) -> int:
        return self.sim.probe(device, tokens, experts, placement)

    def probe_slowdown(self, device: str) -> int:
        return self.sim.probe_slowdown(device)

    def probe_transfer(self, link: str | None = None) -> int:
        return self.sim.probe_transfer(link)

    @property
    def bytes_moved(self) -> int:
        return self.sim.bytes_moved

    def _compute(self, plan: LayerPlan) -> torch.Tensor:
        """The weighted sum of all experts, added in fp32 in the order of the queues."""
        routed, choice = self._routed, self._routed.choice
        hidden = routed.hidden
        total = torch.zeros(hidden.shape)
        groups = group_by_expert(choice.experts, choice.weights)
        for device, queue in plan.queues.items():
            near = self._near_data if device in self._units else None
            for expert in queue:
                group, block = groups[expert], self.store.block(plan.layer, expert)
                work = block, hidden, group.tokens, group.weights, total
                if near is None:
                    self._kernel.compute(*work)
                else:
                    near.compute(*work, self._width_of(plan, expert, device))
            self.computed[device] = self.computed.get(device, 0) + len(queue)
        return total.to(hidden.dtype)

    def _width_of(self, plan: LayerPlan, expert: int, device: str) -> slice:
        """The device's part of the expert's intermediate width: parts lie one after another in
        the order of their memories."""
        if expert not in plan.parts:
            return ALL
        topology, before, width = self.sim.topology, 0, self._kernel.shape.intermediate
        parts = plan.parts[expert]
        for name in sorted(parts, key=topology.device):
            if name == device:
                break
            before += parts[name]
        return slice(width * before // PARTS, width * (before + parts[device]) // PARTS)
