"""One simulated run: settings and a trace in, a result out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

from moesaic.core.body import Decider
from moesaic.core.errors import ImpossibleSetting
from moesaic.core.offloading import IN_DRAM
from moesaic.core.report import Timeline
from moesaic.core.routing import UNUSED, ExpertId, LayerRouting
from moesaic.core.units import ns_from_us
from moesaic.engine.described_belief import described_belief, host_reads
from moesaic.lab.fallback_script import script
from moesaic.lab.simulate.floor import Floor
from moesaic.lab.simulate.gated_steps import Pass, gated
from moesaic.lab.simulate.result import Result, ResultCounter
from moesaic.lab.simulate.settings import Settings
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics
from moesaic.machines.sim.planning_cost import PlanningCost
from moesaic.policies.belief import Belief, warm_up
from moesaic.policies.brain import Brain
from moesaic.policies.compose import Composition
from moesaic.policies.expert_profile import ExpertProfile, ProfiledModel
from moesaic.policies.fallback_prefetch import FallbackPrefetch, RankedExperts
from moesaic.policies.future import Future
from moesaic.policies.gate import FULL, gates
from moesaic.policies.gate.base import Gate
from moesaic.policies.layout.base import Layout, Profile
from moesaic.policies.policy_checks import needs_future
from moesaic.policies.shape import Shape
from moesaic.workloads.source import TraceSource
from moesaic.workloads.steps import decode_steps, popularity, prefill_steps


def simulate(
    settings: Settings,
    source: TraceSource,
    timeline: Timeline | None = None,
    advance: Callable[[int], None] = lambda steps: None,
    full_s: float | None = None,
) -> Result:
    """Run the warm-up steps, then measure. `advance(1)` is called after every measured pass, and
    after every step of the warm-up, however many passes it has; `full_s` is what a token takes
    with gate `full`, where that is known."""
    check_trace(settings, source)
    counts = profile(settings, source).counts
    steps = workload(settings, source)
    machine, brain = assemble(settings, counts, steps, timeline)
    decider = deciding(settings, brain)
    floor, tally, done = Floor(machine.physics), ResultCounter(settings), 0
    for each in steps:
        measured = each.number >= settings.warmup_steps
        if measured and not tally.opened:
            tally.open(machine, decider)
        started = perf_counter_ns()
        routed = replace(each.routed, step=each.routed.step.behind(settings.context))
        if isinstance(decider, FallbackPrefetch):
            decider.begin(each.rows or (), each.ages)
        report = machine.step(routed, decider)
        if measured:
            taken = perf_counter_ns() - started
            tally.add(report, floor.step_s(routed.step, report, routed.uses), taken)
            tally.add_tokens(report, each)
        advance(1 if measured else each.number + 1 - done)
        done = each.number + 1
    return tally.close(machine, brain, floor, source, decider, full_s)


def profile(settings: Settings, source: TraceSource) -> ExpertProfile:
    """What the initial placement and the cache start from: what a file says, or tokens of the
    trace before the first that is replayed."""
    if settings.placement is not None:
        return settings.placement
    before = settings.skipped_tokens - settings.profile_tokens
    counts = popularity(source, settings.skipped_tokens or 1)
    if before:
        counts = counts - popularity(source, before)
    header = source.header
    shape = Shape(header.num_layers, header.num_experts, header.top_k)
    return ExpertProfile(ProfiledModel(header.model, shape), settings.profile_tokens, counts)


def full_token_s(settings: Settings, source: TraceSource) -> float | None:
    """What a decoded token takes if every token uses all experts, all else being equal; None where
    that is the run itself, or a prompt's."""
    if settings.policies.gate.name == FULL or settings.phase == "prefill":
        return None
    policies = settings.policies.but(gate=FULL)
    full = simulate(replace(settings, policies=policies, fallback_ratio=None), source)
    return full.elapsed_s / full.tokens


def deciding(settings: Settings, brain: Brain) -> Decider:
    """The brain, with what prefetches for tokens that run again, where they do."""
    gate = settings.policies.gate.create(gates, settings.model.top_k)
    if settings.phase == "prefill" or not (gate.reruns or gate.draft) or not settings.slots:
        return brain
    return InexactFallback(brain, gate, settings.wants_right, settings.seed)


def check_trace(settings: Settings, source: TraceSource) -> None:
    """The trace must be of a model of the same shape, and say how sure the model was where a gate
    wants to know."""
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
    gate = settings.policies.gate
    made = gate.create(gates, model.top_k)
    judges = settings.phase == "decode" and (made.reruns or made.draft > 0)
    if judges and settings.fallback_ratio is None and not header.has_confidence:
        what, share = (
            ("keeps drafts", "drafts that are wrong")
            if made.draft
            else ("runs tokens again", "tokens to run again")
        )
        raise ImpossibleSetting(
            f"gate {gate.name!r} {what} by how sure the model is, and the trace of "
            f"{header.model} does not say that: give --fallback-ratio, the share of {share}, or "
            "replay a trace that `moesaic run --record` has left"
        )


def workload(settings: Settings, source: TraceSource) -> Iterable[Pass]:
    """The passes of the run, after the profile part of the trace; a list where an oracle must
    know them beforehand."""
    steps = settings.warmup_steps + settings.steps
    skip = settings.skipped_tokens
    if settings.phase == "decode":
        routed = decode_steps(source, settings.batch, steps, skip_tokens=skip)
    else:
        routed = prefill_steps(source, settings.tokens, steps, skip_tokens=skip)
    gate = settings.policies.gate.create(gates, settings.model.top_k)
    ratio = settings.fallback_ratio
    scripted = None if ratio is None else script(ratio, settings.seed)
    passes = gated(routed, gate, scripted, settings.phase, settings.seed)
    return list(passes) if needs_future(settings.policies) else passes


def assemble(
    settings: Settings,
    counts: NDArray[np.int64],
    steps: Iterable[Pass],
    timeline: Timeline | None,
    localized: Iterable[tuple[ExpertId, int]] = (),
) -> tuple[SimMachine, Brain]:
    """The machine with its initial placement, and the brain that has got to know it. Where main
    memory is DIMMs, `localized` are the experts that lie whole in one, by its number; all others
    are striped."""
    model, policies = settings.model, settings.policies.for_phase(settings.phase)
    physics = Physics(
        settings.machine, model, settings.expert_dtype, settings.dense_dtype, settings.kv_dtype
    )
    shape = Shape(model.num_moe_layers, model.num_experts, model.top_k)
    composition = Composition(policies, shape, settings.slots, settings.checked)
    placed = composition.placement(counts)
    planner, decides = settings.machine.planner, composition.decides
    planning = PlanningCost.of(planner, decides, composition.looks_ahead)
    dense_on = composition.dense_on(placed)
    machine = SimMachine(physics, settings.slots, timeline, dense_on, planning, settings.kv_cache)
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
    given = settings.placement
    share = counts / max(settings.profile_tokens if given is None else given.tokens, 1)
    loads: NDArray[np.int64] = np.ceil(np.minimum(share, 1.0) * tokens).astype(np.int64)
    return loads[np.newaxis]


def _belief(settings: Settings, machine: SimMachine) -> Belief:
    gate = settings.policies.gate.create(gates, settings.model.top_k)
    max_tokens = settings.tokens_per_step * (1 + gate.draft)  # those of a check meet in experts
    if settings.belief == "measured":
        measured = warm_up(machine, max_tokens, machine.topology)
        return replace(measured, host_reads=host_reads(settings.machine))
    return described_belief(settings.machine, settings.model, settings.expert_dtype, max_tokens)


def _future(settings: Settings, steps: Iterable[Pass]) -> Future:
    experts, layers = settings.model.num_experts, settings.model.num_moe_layers
    loads = [[r.layer(layer).loads(experts) for layer in range(layers)] for r, *_ in steps]
    return Future(np.asarray(loads, dtype=np.uint32))


# Prefetching for tokens that run again where the rejected pass is only partly right. A trace has
# one routing per token, so a simulated rejected pass would want exactly what the big one uses. In
# truth fewer experts change the hidden states, and with them what later routers choose: a stated
# share of the wants is replaced by experts that are not used. Where the gate binds the big pass
# to what the rejected one chose (`reuse`), the trace's routing stands for that choice, and all
# wants are right.


class InexactFallback(FallbackPrefetch):
    def __init__(self, brain: Brain, gate: Gate, accuracy: float, seed: int) -> None:
        super().__init__(brain, gate)
        self._right_share, self._random = accuracy, np.random.default_rng(seed)
        self._experts = brain.cache.values.shape[1]

    def wanted(self, routing: LayerRouting) -> RankedExperts:
        ranked, scores = super().wanted(routing)
        if self._right_share == 1.0:
            return RankedExperts(ranked, scores)
        wrong = self._random.random(ranked.shape) >= self._right_share
        changed = ranked.copy()
        for token, rank in zip(*wrong.nonzero(), strict=True):
            changed[token, rank] = self._other(changed[token], ranked[token])
        return RankedExperts(changed, scores)

    def _other(self, *taken: NDArray[np.int64]) -> int:
        """An expert that is neither used nor wanted already."""
        is_free = np.ones(self._experts, dtype=np.bool_)
        for experts in taken:
            is_free[experts[experts != UNUSED]] = False
        free = is_free.nonzero()[0]
        return int(self._random.choice(free)) if len(free) else int(taken[0][0])
