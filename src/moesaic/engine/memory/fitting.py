"""How many slots, and how many tokens of all sequences together: as asked, or what fits where that
was left open. A sequence may be as long as the model allows, if so many tokens fit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import partial

from moesaic.core.errors import ImpossibleSetting
from moesaic.engine.engine_settings import USUAL_SEQUENCES, EngineSettings, UsualSequences
from moesaic.engine.memory.plan_parts import MemoryPlan, PlanFor, make_plan
from moesaic.engine.memory.sizes import Sizes
from moesaic.model_info.kv_blocks import KV_BLOCK, blocks_of
from moesaic.model_info.model_spec import ModelSpec
from moesaic.policies.policy_checks import lookahead, needing_slots

CACHE_RATIO = 0.25  # where neither it nor the accelerator's memory is given
MIN_LENGTH = 256  # tokens: shorter sequences are of no use
DEFAULT_LENGTH = 4096  # tokens: no more before there are slots, where both are open
POOLED = 8  # sequences that may be as long as the model allows at the same time, if memory allows


def decide(
    spec: ModelSpec, settings: EngineSettings, available: int, accelerator_free: int | None = None
) -> MemoryPlan:
    """The plan with the largest capacity that fits, or the smallest, which then does not."""
    sizes = Sizes.of(spec, settings)
    shortest, longest = _lengths(spec, settings)
    least, most = _tokens(settings, shortest, longest)
    needs_gate_bank = lookahead(settings.policies) > 0
    plan_for = partial(
        make_plan, sizes, settings, available, accelerator_free, needs_gate_bank, longest
    )
    slots = _slots(spec, settings, plan_for, least, most)
    return plan_for(slots, largest(least, most, lambda tokens: plan_for(slots, tokens).fits))


def _tokens(settings: EngineSettings, shortest: int, longest: int) -> tuple[int, int]:
    """The least and the most tokens of all sequences together."""
    asked = settings.kv_tokens
    if asked is None:
        several = _pooled(settings)
        open_number = isinstance(settings.max_sequences, UsualSequences | None)
        if settings.max_model_len is not None and not open_number:
            several = settings.sequences
        return shortest, several * KV_BLOCK * blocks_of(longest)
    if asked < shortest:
        raise ImpossibleSetting(
            f"a KV cache of {asked} tokens was asked for, and sequences of {shortest}: use "
            f"--kv-tokens {shortest} or more, or --max-model-len {asked} or less"
        )
    return asked, asked


def _pooled(settings: EngineSettings) -> int:
    """More than the usual number of sequences need more blocks."""
    return max(min(settings.sequences, POOLED), settings.sequences * POOLED // USUAL_SEQUENCES)


def _lengths(spec: ModelSpec, settings: EngineSettings) -> tuple[int, int]:
    """The least and the most tokens a sequence may have."""
    asked, context = settings.max_model_len, spec.max_context
    if asked is None:
        longest = context or DEFAULT_LENGTH
        return min(MIN_LENGTH, longest), longest
    if context and asked > context:
        raise ImpossibleSetting(
            f"sequences of {asked} tokens were asked for; {spec.name} can run at most {context} "
            f"(its context length): use --max-model-len {context} or less"
        )
    return asked, asked


def _slots(
    spec: ModelSpec, settings: EngineSettings, plan_for: PlanFor, least: int, most: int
) -> int:
    by_memory = sized_by_memory(settings, plan_for(0, least))
    minimum = _min_slots(spec, settings, by_memory)
    if not settings.capabilities.moves:
        return 0
    if by_memory:
        fair = _fair_tokens(settings, plan_for, minimum, least, most)
        for tokens in (fair, least):
            slots = _max_slots(spec, settings, minimum, partial(plan_for, tokens=tokens))
            if plan_for(slots, tokens).fits:
                break
        return slots
    ratio = CACHE_RATIO if settings.cache_ratio is None else settings.cache_ratio
    slots = settings.policies.slots_at(ratio, spec.num_moe_layers, spec.num_experts)
    if slots < minimum:
        raise ImpossibleSetting(
            f"schedule {needing_slots(settings.policies)!r} computes every expert on the "
            f"accelerator, but cache ratio {ratio} leaves {slots} slots for the {minimum} layers "
            f"of {spec.name}: use {_ratios(1 / spec.num_experts)}, or a schedule that can use the "
            "CPU"
        )
    if settings.cache_ratio and not slots:
        minimum = _unit(spec, settings)
        raise ImpossibleSetting(
            f"cache ratio {ratio:g} leaves no slot in the accelerator; the smallest cache of "
            f"{spec.name} has {minimum}: use --cache-ratio "
            f"{_ratios(minimum / spec.num_expert_blocks)}, or 0 for none"
        )
    return slots


def _ratios(least: float) -> str:
    """The cache ratios from the least that makes a slot; one expert per layer leaves only 1."""
    return "1" if least >= 1 else f"{least:.4g} to 1"


def sized_by_memory(settings: EngineSettings, plan: MemoryPlan) -> bool:
    """Whether there are as many slots as the accelerator's memory allows."""
    return settings.cache_ratio is None and plan.accelerator_limit_bytes is not None


def _unit(spec: ModelSpec, settings: EngineSettings) -> int:
    """Slots are given out by so many."""
    return spec.num_moe_layers if settings.policies.per_layer else 1


def _fair_tokens(
    settings: EngineSettings, plan_for: PlanFor, minimum: int, least: int, most: int
) -> int:
    """Sequences get half of what is left in the accelerator, up to DEFAULT_LENGTH for each of
    several."""
    base = plan_for(minimum, least)
    assert base.accelerator_limit_bytes is not None, "slots are what fits in a limit"
    half = (base.accelerator_limit_bytes + base.accelerator_bytes) // 2
    high = min(most, max(least, _pooled(settings) * DEFAULT_LENGTH))
    return largest(least, high, lambda n: plan_for(minimum, n).accelerator_bytes <= half)


def _max_slots(
    spec: ModelSpec, settings: EngineSettings, minimum: int, plan_for: Callable[[int], MemoryPlan]
) -> int:
    unit = _unit(spec, settings)
    low, high = minimum // unit, spec.num_expert_blocks // unit
    return unit * largest(low, high, lambda n: plan_for(n * unit).fits)


def _min_slots(spec: ModelSpec, settings: EngineSettings, by_memory: bool) -> int:
    schedule = needing_slots(settings.policies)
    if schedule is None:
        return _unit(spec, settings) if by_memory else 0
    if not settings.capabilities.moves:
        raise ImpossibleSetting(
            f"schedule {schedule!r} computes every expert on the accelerator, but there is none: "
            "add --accelerator emulated, or use a schedule that can use the CPU, such as "
            "--schedule best-split"
        )
    return spec.num_moe_layers


def largest(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The largest number that fits, if all below it do; `low` where none does."""
    if not fits(low):
        return low
    return low + bisect_left(range(low + 1, high + 1), True, key=lambda n: not fits(n))
