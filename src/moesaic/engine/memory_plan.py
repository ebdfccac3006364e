"""The memory plan: what will lie where, decided before anything is allocated.

Slots and the length of sequences are chosen where the settings leave them open; what does not fit
is refused with the numbers and with changes that would make it fit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.model import ModelSpec
from moesaic.core.units import GB
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory_sizes import STAGING, Sizes
from moesaic.engine.room import Room
from moesaic.policies.prefetch import prefetches
from moesaic.policies.schedule import schedules

CACHE_RATIO = 0.25  # where neither it nor the accelerator's memory is given
SHORTEST = 256  # tokens: less than that is no use to anybody
USUAL = 4096  # tokens: no more before there are slots, where both are open
SPARE = 0.05  # of main memory: for Python, torch and everybody else


class Part(NamedTuple):
    name: str
    detail: str
    bytes: int
    main: bool = True
    accelerator: bool = False


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """An emulated accelerator's memory is main memory, and counts in both."""

    model: str
    dtype: str  # of everything but the routed experts
    expert_dtype: str
    parts: tuple[Part, ...]
    room: Room
    cache_ratio: float  # share of all routed experts that have a slot
    available_bytes: int
    accelerator_limit_bytes: int | None  # None: no limit of its own, or no accelerator

    @property
    def main_bytes(self) -> int:
        return sum(part.bytes for part in self.parts if part.main)

    @property
    def accelerator_bytes(self) -> int:
        return sum(part.bytes for part in self.parts if part.accelerator)

    @property
    def fits_main(self) -> bool:
        return self.main_bytes <= self.available_bytes

    @property
    def fits(self) -> bool:
        limit = self.accelerator_limit_bytes
        return self.fits_main and (limit is None or self.accelerator_bytes <= limit)


class Draft(Protocol):
    """What so many slots and sequences of this length would need, whether it fits or not."""

    def __call__(self, slots: int, length: int) -> MemoryPlan: ...


def plan_memory(spec: ModelSpec, settings: EngineSettings, available_bytes: int) -> MemoryPlan:
    """Raises ImpossibleSetting for what does not fit in `available_bytes` of main memory, or in
    what the settings allow the accelerator."""
    plan = _decide(spec, settings, available_bytes)
    if not plan.fits:
        from moesaic.engine.memory_refusal import refusal

        decide = partial(_decide, spec, available=available_bytes)
        raise ImpossibleSetting(refusal(plan, settings, decide))
    return plan


def largest(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The largest number that fits, if all below it do; `low` where none does."""
    return max(low, low + bisect_left(range(low, high + 1), True, key=lambda n: not fits(n)) - 1)


def slots_of(spec: ModelSpec, cache_ratio: float, per_layer: bool) -> int:
    """As many slots as the simulator has at this ratio: with `per_layer`, the same for each."""
    if per_layer:
        return round(cache_ratio * spec.num_experts) * spec.num_moe_layers
    return round(cache_ratio * spec.num_expert_blocks)


def _decide(spec: ModelSpec, settings: EngineSettings, available: int) -> MemoryPlan:
    """The plan with the most room that fits, or the smallest, which then does not."""
    sizes = Sizes.of(spec, settings)
    shortest, longest = _lengths(spec, settings)
    draft = partial(_draft, sizes, settings, available)
    slots = _slots(spec, settings, draft, shortest, longest)
    return draft(slots, largest(shortest, longest, lambda length: draft(slots, length).fits))


def _lengths(spec: ModelSpec, settings: EngineSettings) -> tuple[int, int]:
    """The least and the most tokens a sequence may have."""
    asked, most = settings.max_model_len, spec.max_context
    if asked is None:
        longest = most or USUAL
        return min(SHORTEST, longest), longest
    if most and asked > most:
        raise ImpossibleSetting(
            f"sequences of {asked} tokens were asked for; {spec.name} was made for at most "
            f"{most}: use --max-model-len {most} or less"
        )
    return asked, asked


def _slots(
    spec: ModelSpec, settings: EngineSettings, draft: Draft, shortest: int, longest: int
) -> int:
    least = _least_slots(spec, settings)
    if settings.accelerator == "none":
        return 0
    if settings.cache_ratio is None and settings.gpu_memory_gb is not None:
        for length in (_fair_length(draft, least, shortest, longest), shortest):
            slots = _most_slots(spec, settings.per_layer, least, partial(draft, length=length))
            if slots:
                break
        return slots
    ratio = CACHE_RATIO if settings.cache_ratio is None else settings.cache_ratio
    slots = slots_of(spec, ratio, settings.per_layer)
    if slots < least:
        raise ImpossibleSetting(
            f"schedule {needing_slots(settings)!r} computes every expert on the accelerator, but "
            f"cache ratio {ratio} leaves {slots} slots for the {least} layers of {spec.name}: use "
            f"at least {1 / spec.num_experts:.4g}, or a schedule that can use the CPU"
        )
    return slots


def _fair_length(draft: Draft, least: int, shortest: int, longest: int) -> int:
    """Sequences get half of what is left in the accelerator, but not more than is usual."""
    base = draft(least, shortest)
    assert base.accelerator_limit_bytes is not None, "slots are what fits in a limit"
    half = (base.accelerator_limit_bytes + base.accelerator_bytes) // 2
    high = min(longest, max(shortest, USUAL))
    return largest(shortest, high, lambda n: draft(least, n).accelerator_bytes <= half)


def _most_slots(
    spec: ModelSpec, per_layer: bool, least: int, draft: Callable[[int], MemoryPlan]
) -> int:
    unit = spec.num_moe_layers if per_layer else 1
    low, high = least // unit, spec.num_expert_blocks // unit
    return unit * largest(low, high, lambda n: draft(n * unit).fits)


def _least_slots(spec: ModelSpec, settings: EngineSettings) -> int:
    schedule = needing_slots(settings)
    if schedule is None:
        return 0
    if settings.accelerator == "none":
        raise ImpossibleSetting(
            f"schedule {schedule!r} computes every expert on the accelerator, but there is none: "
            "add --accelerator emulated, or use a schedule that can use the CPU, such as "
            "--schedule best-split"
        )
    return spec.num_moe_layers


def needing_slots(settings: EngineSettings) -> str | None:
    """The schedule, if any, that cannot do without experts in the accelerator."""
    names = (settings.schedule_for(phase) for phase in ("decode", "prefill"))
    return next((name for name in names if schedules.load(name).needs_slots), None)


def _draft(
    sizes: Sizes, settings: EngineSettings, available: int, slots: int, length: int
) -> MemoryPlan:
    spec, limit = sizes.spec, settings.gpu_memory_gb
    with_accelerator = settings.accelerator != "none"
    network = partial(Part, accelerator=with_accelerator)  # what belongs to attention and router
    of_length = f"{sizes.sequences} sequences of {length} tokens"
    step = f"a step of at most {sizes.step_tokens} tokens"
    parts = [
        Part("routed experts", f"{spec.num_expert_blocks} in {sizes.expert_dtype}", sizes.store),
        network("dense weights", sizes.dtype, sizes.dense),
        network("KV cache", of_length, sizes.kv_cache(length)),
        network("workspace", step, sizes.workspace(length)),
    ]
    if with_accelerator:
        places = f"{slots} experts and {STAGING} in passing"
        parts.append(network("slots", places, (slots + STAGING) * sizes.block))
    if slots and prefetches.create(settings.prefetch).lookahead:
        parts.append(network("gate bank", "to foresee later layers", sizes.gate_bank))
    parts.append(Part("left free", f"{SPARE:.0%}, for everything else", round(SPARE * available)))
    return MemoryPlan(
        model=spec.name,
        dtype=sizes.dtype,
        expert_dtype=sizes.expert_dtype,
        parts=tuple(parts),
        room=Room(slots, sizes.sequences, length),
        cache_ratio=slots / spec.num_expert_blocks,
        available_bytes=available,
        accelerator_limit_bytes=None if limit is None else round(limit * GB),
    )
