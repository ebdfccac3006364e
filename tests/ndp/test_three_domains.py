"""Does a model say the same on a virtual machine of GPU, CPU and DIMMs that compute, in the units'
arithmetic, while experts move between layouts; and is its time the simulator's?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from near_data_arithmetic import ALL, NearDataArithmetic

import stock
from moesaic.core.layer_plan import PARTS, LayerPlan, Move
from moesaic.core.legality import check
from moesaic.core.report import LayerReport
from moesaic.core.routing import ExpertId, LayerRouting
from moesaic.core.view import View
from moesaic.engine.assemble import load_store, on_store
from moesaic.engine.described_belief import host_reads
from moesaic.engine.memory.capacity import Capacity
from moesaic.engine.runner import Runner
from moesaic.hardware.dimms import NdpDevice
from moesaic.hardware.machine_reader import load_machine
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.hardware.what_if import changed
from moesaic.kernels.grouping import group_by_expert
from moesaic.kernels.reference import ReferenceKernel
from moesaic.machines.layerwise.layerwise import Layerwise
from moesaic.machines.real.executor import Network
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.forward_pass import ForwardPass
from moesaic.machines.real.machine import Machine
from moesaic.machines.real.routing_adapter import RoutingAdapter
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.machine import SIMULATED
from moesaic.machines.sim.physics import Physics
from moesaic.machines.sim.planning_cost import PlanningCost
from moesaic.models.attentions.kv_cache import BlockCache
from moesaic.models.bundled_model import default_model
from moesaic.models.decoder import Decoder
from moesaic.models.experts.expert_service import RoutedTokens
from moesaic.models.open_model import load_decoder, open_model
from moesaic.models.text.tokenizer import Tokenizer
from moesaic.policies.belief import warm_up
from moesaic.policies.compose import Composition
from moesaic.policies.policy_set import PHASES, PolicySet
from moesaic.policies.shape import Shape
from real_runs import PROMPT, Loaded, say, settings, truth

# A simulated machine that computes: plans are executed in virtual time by the simulator, and
# every expert's arithmetic is done here, as the device that the plan gives it to would do it. So
# a model can be run on a machine that does not exist, three compute domains for example: tokens
# are real, durations are those of the description.


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


MAX_STEP_TOKENS = 512  # that costs are measured for; more are extrapolated


def virtual_runner(
    decoder: Decoder,
    store: ExpertStore,
    machine: MachineSpec,
    policies: PolicySet,
    capacity: Capacity,
    localized: Mapping[ExpertId, str] | None = None,
) -> Runner:
    """`localized` names the placement of experts that do not lie striped in main memory, such as
    "whole@dimm3". The runner's reports are in virtual time."""
    spec = decoder.architecture.spec
    shape = Shape(spec.num_moe_layers, spec.num_experts, spec.top_k)
    composition = Composition(policies.given_slots(capacity.slots), shape, capacity.slots)
    planning = PlanningCost.of(machine.planner, composition.decides, composition.looks_ahead)
    sim = SimMachine(Physics(machine, spec, store.kernel.dtype), capacity.slots, planning=planning)
    sim.memory.place(composition.placement())
    for expert, placement in (localized or {}).items():
        sim.memory.place([expert], sim.topology.placement(placement))
    sim.fill_main_memory()
    belief = warm_up(sim, MAX_STEP_TOKENS, sim.topology)
    cache = BlockCache(spec, capacity.sequences, capacity.length, decoder.dtype)
    network = Network(decoder, cache, store, RoutingAdapter(composition.ranks))
    return Runner(
        decoder,
        Machine(VirtualLayers(network, sim), "its time is virtual"),
        composition.brain(replace(belief, host_reads=host_reads(machine))),
        cache,
        {phase: composition.schedule_for(phase) for phase in PHASES},
        composition.gate(),
    )


SLOTS = 12


class AllDomains:
    """A brain that uses everything: what is in GPU memory there, what lies in a DIMM in its unit,
    the rest on the CPU; and moves two experts of the next layer to another layout each time."""

    def __init__(self, experts: int, layers: int) -> None:
        self.schedule = None
        self.moved = 0
        self._experts, self._layers = experts, layers
        self._rng = np.random.default_rng(5)

    def decide(self, routing: LayerRouting, view: View) -> LayerPlan:
        self._view, self._layer = view, routing.layer
        queues: dict[str, tuple[int, ...]] = {}
        loads = routing.loads(self._experts)
        for expert in np.flatnonzero(loads).tolist():
            where = np.flatnonzero(view.located[:, routing.layer, expert]).tolist()
            device = "gpu" if where[0] == 0 else "cpu"  # which also reads what is split
            if 2 <= where[0] < 18:
                device = f"ndp{where[0] - 2}"
            queues[device] = (*queues.get(device, ()), expert)
        plan = LayerPlan(routing.layer, queues)
        check(plan, loads, view)
        return plan

    def look_ahead(self) -> tuple[Move, ...]:
        layer, moves = (self._layer + 1) % self._layers, []
        flying = {(f.layer, f.expert) for f in self._view.in_flight}
        for expert in self._rng.choice(self._experts, size=2, replace=False).tolist():
            (source,) = np.flatnonzero(self._view.located[1:, layer, expert]) + 1
            destination = int(self._rng.integers(1, 18))
            if destination != source and (layer, expert) not in flying:
                move = Move(layer, expert, None, True, int(source), destination, leaves=True)
                moves.append(move)
        self.moved += len(moves)
        return tuple(moves)

    def learn(self, routing: LayerRouting, report: LayerReport) -> None:
        assert report.end_ns > report.start_ns


class SplitDomains(AllDomains):
    """The same with experts that lie split over two DIMMs, computed by both units; none moves."""

    def decide(self, routing: LayerRouting, view: View) -> LayerPlan:
        plan, topology = super().decide(routing, view), view.topology
        queues = dict(plan.queues)
        parts: dict[int, dict[str, int]] = {}
        for first in range(0, 16, 2):
            both = (f"ndp{first}", f"ndp{first + 1}")
            group = topology.placement(f"split@dimm{first}+dimm{first + 1}")
            split = [e for e in queues.get("cpu", ()) if view.located[group, routing.layer, e]]
            queues["cpu"] = tuple(e for e in queues.get("cpu", ()) if e not in split)
            for unit in both:
                queues[unit] = (*queues.get(unit, ()), *split)
            parts |= {expert: dict.fromkeys(both, 500) for expert in split}
        plan = plan._replace(queues=queues, parts=parts)
        check(plan, routing.loads(self._experts), view)
        return plan

    def look_ahead(self) -> tuple[Move, ...]:
        return ()


def on_three_domains(model: Loaded) -> tuple[Runner, AllDomains]:
    """Every other expert localized, over all DIMMs in turn."""
    spec = model.spec
    dimms = {
        ExpertId(layer, expert): f"whole@dimm{(layer + expert) % 16}"
        for layer in range(spec.num_moe_layers)
        for expert in range(0, spec.num_experts, 2)
    }
    runner = virtual_runner(
        model.decoder,
        model.store,
        load_machine("trimoe-paper"),
        PolicySet(),
        Capacity(SLOTS, 1, 256),
        dimms,
    )
    brain = AllDomains(spec.num_experts, spec.num_moe_layers)
    runner.brain = brain  # type: ignore[assignment]
    return runner, brain


def plainly(model: Loaded) -> Runner:
    how = settings("best-split", "two-speed", "impact", accelerator="none")
    return on_store(model.decoder, model.store, how, Capacity(0, 1, 256))


def with_reference(folder: Path) -> Loaded:
    model = open_model(folder)
    decoder = load_decoder(model, "bf16")
    return Loaded(decoder, load_store(decoder, model.experts, "bf16", kernel_name="reference"))


def test_the_bundled_model_says_the_same_on_three_domains() -> None:
    folder = default_model()
    model = with_reference(folder)
    prompt = Tokenizer.open(folder).encode("The capital of")
    plain = say(plainly(model), prompt, 24)
    runner, brain = on_three_domains(model)
    said = say(runner, prompt, 24)
    assert said.text == plain.text
    machine = runner.machine.layerwise
    assert isinstance(machine, VirtualLayers)
    units = sum(count for device, count in machine.computed.items() if device.startswith("ndp"))
    assert min(units, machine.computed["gpu"], machine.computed["cpu"]) > 20
    assert len([d for d in machine.computed if d.startswith("ndp")]) > 8, "many DIMMs took part"
    assert machine.bytes_moved > 0
    assert brain.moved > 50
    located = machine.sim.memory.located[1:].sum(axis=0)
    assert ((located == 1) | (located == 2)).all(), "one host layout each, but for what is leaving"


def test_the_bundled_model_says_the_same_with_split_experts() -> None:
    folder = default_model()
    model = with_reference(folder)
    spec, prompt = model.spec, Tokenizer.open(folder).encode("The capital of")
    split = {
        ExpertId(layer, expert): f"split@dimm{first}+dimm{first + 1}"
        for layer in range(spec.num_moe_layers)
        for expert in range(0, spec.num_experts, 2)
        for first in [2 * ((layer + expert // 2) % 8)]
    }
    machine = changed(load_machine("trimoe-paper"), {"dimms.split": 2})
    runner = virtual_runner(
        model.decoder, model.store, machine, PolicySet(), Capacity(SLOTS, 1, 256), split
    )
    runner.brain = SplitDomains(spec.num_experts, spec.num_moe_layers)  # type: ignore[assignment]
    assert say(runner, prompt, 16).text == say(plainly(model), prompt, 16).text
    layers = runner.machine.layerwise
    assert isinstance(layers, VirtualLayers)
    computed = layers.computed
    assert computed["ndp0"] == computed["ndp1"] > 5
    assert sum(computed[f"ndp{at}"] for at in range(16)) > 100


def test_its_time_is_virtual_and_repeats() -> None:
    model = with_reference(default_model())
    reports = []
    for _ in range(2):
        runner, _ = on_three_domains(model)
        say(runner, [5, 6, 7, 8], 3)
        reports.append(runner.report)
    assert reports[0] == reports[1]
    assert reports[0] is not None
    machine = runner.machine.layerwise
    assert isinstance(machine, VirtualLayers)
    assert reports[0].end_ns == machine.sim.clock.now


@pytest.mark.parametrize("name", ["qwen3-moe", "glm-4.5", "mixtral", "olmoe"])
def test_three_domains_are_no_further_from_fp32_than_bf16_is(name: str) -> None:
    """FP16 in the units is finer than the bf16 of everything else, so using them must not add to
    the error that the plain run has against the stock model in fp32; 5 % for chance. The median
    token's: where rounding gives a token another expert, its error is ten times the others'."""
    model, exact = with_reference(stock.saved(name).folder), truth(name).logits[: len(PROMPT)]
    runner, _ = on_three_domains(model)
    plain, said = say(plainly(model), steps=0).logits, say(runner, steps=0).logits
    errors = _of_tokens(said - exact)
    assert (errors / _of_tokens(plain - exact)).median() < 1.05
    assert int((errors > 3 * errors.median()).sum()) <= len(PROMPT) // 5, "no others stand out"
    machine = runner.machine.layerwise
    assert isinstance(machine, VirtualLayers)
    assert any(device.startswith("ndp") for device in machine.computed)


def _of_tokens(error: torch.Tensor) -> torch.Tensor:
    """The root mean square over each token's logits."""
    return error.float().pow(2).mean(dim=-1).sqrt()
