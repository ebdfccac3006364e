"""One simulated run: settings and a trace in, a result out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.offloading import IN_DRAM
from moesaic.core.report import Timeline
from moesaic.core.routing import ExpertId
from moesaic.core.units import ns_from_us
from moesaic.engine.described_belief import described_belief
from moesaic.lab.simulate.floor import Floor
from moesaic.lab.simulate.gated_steps import gated
from moesaic.lab.simulate.result import Result, ResultCounter
from moesaic.lab.simulate.settings import Settings
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics
from moesaic.machines.sim.planning_cost import PlanningCost
from moesaic.policies.belief import Belief, warm_up
from moesaic.policies.brain import Brain
from moesaic.policies.compose import Composition
from moesaic.policies.future import Future
from moesaic.policies.gate import gates
from moesaic.policies.layout.base import Layout, Profile
from moesaic.policies.policy_checks import needs_future
from moesaic.policies.shape import Shape
from moesaic.workloads.source import TraceSource
from moesaic.workloads.steps import StepRouting, decode_steps, popularity, prefill_steps


def simulate(
    settings: Settings,
    source: TraceSource,
    timeline: Timeline | None = None,
    advance: Callable[[int], None] = lambda steps: None,
) -> Result:
    """Run the warm-up steps, then measure; `advance(1)` is called after every step."""
    check_trace(settings, source)
    counts = popularity(source, settings.profile_tokens or 1)
    steps = workload(settings, source)
    machine, brain = assemble(settings, counts, steps, timeline)
    floor, tally = Floor(machine.physics), ResultCounter(settings)
    total = settings.warmup_steps + settings.steps
    for index, traced in enumerate(islice(steps, total)):
        if index == settings.warmup_steps:
            tally.open(machine)
        started = perf_counter_ns()
        routed = replace(traced, step=traced.step.behind(settings.context))
        report = machine.step(routed, brain)
        if index >= settings.warmup_steps:
            taken = perf_counter_ns() - started
            tally.add(report, floor.step_s(routed.step, report, routed.uses), taken)
        advance(1)
    return tally.close(machine, brain, floor, source)


def check_trace(settings: Settings, source: TraceSource) -> None:
    """The trace must be of a model of the same shape."""
    model, header = settings.model, source.header
    asked = (model.num_moe_layers, model.num_experts, model.top_k)
    found = (header.num_layers, header.num_experts, header.top_k)
    if asked != found:
        raise ImpossibleSetting(
            f"the trace is of {header.model} ({found[0]} MoE layers, {found[1]} experts, top-"
            f"{found[2]}), the model {model.name} has {asked[0]} layers, {asked[1]} experts, top-"
            f"{asked[2]}. Choose the trace's model, or make a trace with: moesaic trace synthesize "
            f"--model {model.name}"
        )


def workload(settings: Settings, source: TraceSource) -> Iterable[StepRouting]:
    """The steps of the run, after the profile part of the trace; a list where an oracle must
    know them beforehand."""
    steps = settings.warmup_steps + settings.steps
    skip = settings.profile_tokens
    if settings.phase == "decode":
        routed = decode_steps(source, settings.batch, steps, skip_tokens=skip)
    else:
        routed = prefill_steps(source, settings.tokens, steps, skip_tokens=skip)
    routed = gated(routed, settings.policies.gate.create(gates, settings.model.top_k))
    return list(routed) if needs_future(settings.policies) else routed


def assemble(
    settings: Settings,
    counts: NDArray[np.int64],
    steps: Iterable[StepRouting],
    timeline: Timeline | None,
    localized: Iterable[tuple[ExpertId, int]] = (),
) -> tuple[SimMachine, Brain]:
    """The machine with its initial placement, and the brain that has got to know it. Where main
    memory is DIMMs, `localized` are the experts that lie whole in one, by its number; all others
    are striped."""
    model, policies = settings.model, settings.policies.for_phase(settings.phase)
    physics = Physics(settings.machine, model, settings.expert_dtype, settings.dense_dtype)
    shape = Shape(model.num_moe_layers, model.num_experts, model.top_k)
    composition = Composition(policies, shape, settings.slots, settings.checked)
    placed = composition.placement(counts)
    planner, decides = settings.machine.planner, composition.decides
    planning = PlanningCost.of(planner, decides, composition.looks_ahead)
    dense_on = composition.dense_on(placed)
    machine = SimMachine(physics, settings.slots, timeline, dense_on, planning)
    machine.memory.place(placed)
    for expert, dimm in localized:
        machine.memory.place([expert], machine.topology.placement(f"whole@dimm{dimm}"))
    decision_ns = ns_from_us(planner.fixed_us) if decides else 0
    belief = _belief(settings, machine).off_by(settings.belief_error)
    belief = replace(belief, decision_ns=decision_ns)
    future = _future(settings, steps) if needs_future(policies) else None
    layout = composition.layout()
    _lay_out(machine, layout, Profile(_profile_loads(settings, counts), belief))
    return machine, composition.brain(belief, future, layout, counts)


def _lay_out(machine: SimMachine, layout: Layout, profile: Profile) -> None:
    """Put experts where in main memory the layout wants them."""
    where = layout.initial(profile, machine.memory.resident.astype(np.bool_))
    for placement in np.unique(where[where != IN_DRAM]).tolist():
        experts = np.argwhere(where == placement).tolist()
        machine.memory.place([ExpertId(*expert) for expert in experts], placement)
    copied = np.argwhere(layout.copied).tolist()
    machine.memory.place([ExpertId(*expert) for expert in copied], IN_DRAM)
    machine.fill_main_memory()  # what lies nowhere else


def _profile_loads(settings: Settings, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """[1, layers, experts]: what the profile's counts mean for one step."""
    tokens = settings.tokens_per_step
    share = counts / max(settings.profile_tokens, 1)
    loads: NDArray[np.int64] = np.ceil(np.minimum(share, 1.0) * tokens).astype(np.int64)
    return loads[np.newaxis]


def _belief(settings: Settings, machine: SimMachine) -> Belief:
    max_tokens = settings.tokens_per_step
    if settings.belief == "measured":
        return warm_up(machine, max_tokens, machine.topology)
    return described_belief(machine.physics, max_tokens)


def _future(settings: Settings, steps: Iterable[StepRouting]) -> Future:
    experts, layers = settings.model.num_experts, settings.model.num_moe_layers
    loads = [[r.layer(layer).loads(experts) for layer in range(layers)] for r in steps]
    return Future(np.asarray(loads, dtype=np.uint32))
