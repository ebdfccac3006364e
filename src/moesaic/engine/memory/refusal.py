"""Why a plan does not fit, in numbers, and what to change: every change it names was tried.

A change is an option and a value; those that help on their own come first, else all together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from moesaic.core.dtypes import BITS_PER_WEIGHT
from moesaic.core.errors import MoesaicError
from moesaic.core.units import GB
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory.fitting import MIN_LENGTH, decide, largest, sized_by_memory
from moesaic.engine.memory.plan_parts import SPARE, MemoryPart, MemoryPlan
from moesaic.model_info.kv_dtypes import INT8
from moesaic.model_info.model_spec import ModelSpec
from moesaic.policies.policy_checks import needing_slots
from moesaic.policies.policy_set import with_options

Decide = Callable[[EngineSettings], MemoryPlan]
Fits = Callable[..., bool]  # with these settings changed
_MB = 1_000_000


class Change(NamedTuple):
    words: str
    fields: dict[str, Any]


def refusal(plan: MemoryPlan, settings: EngineSettings, try_out: Decide) -> str:
    why = _why(plan, settings)
    return f"{_shortage(plan, settings)}{why}. {_advice(plan, settings, try_out)}"


def _why(plan: MemoryPlan, settings: EngineSettings) -> str:
    schedule = needing_slots(settings.policies)
    if schedule:
        return f" (schedule {schedule!r} needs a slot for every layer)"
    if sized_by_memory(settings, plan):
        experts = "one expert of every layer" if settings.policies.per_layer else "one expert"
        return f" (with the smallest cache there is, {experts})"
    return ""


def in_gb(size: float, up: bool = True) -> str:
    """Two digits after the point, rounded up (needs) or down (what there is)."""
    unit, name = (GB, "GB") if size >= GB / 10 else (_MB, "MB")
    rounded = (math.ceil if up else math.floor)(size / unit * 100)
    return f"{rounded / 100:.2f} {name}"


def main_memory_needed(plan: MemoryPlan) -> int:
    """Bytes of available main memory that would be enough, with the share that is left free."""
    spare = round(SPARE * plan.available_bytes)
    return math.ceil((plan.main_bytes - spare) / (1 - SPARE))


def short_refusal(plan: MemoryPlan) -> str:
    """Which memory is too small, in a few words."""
    words = []
    if not plan.fits_main:
        there = in_gb(plan.available_bytes, up=False)
        words.append(f"needs {in_gb(main_memory_needed(plan))} of main memory, {there} available")
    if not plan.fits_accelerator:
        there = in_gb(plan.accelerator_limit_bytes or 0, up=False)
        words.append(f"needs {in_gb(plan.accelerator_bytes)} on the GPU, {there} available")
    return "; ".join(words)


def longer_sequences(
    spec: ModelSpec, plan: MemoryPlan, settings: EngineSettings, accelerator_free: int | None
) -> int | None:
    """Tokens of the only sequence, where several have less than the model allows because they share
    the memory; None: a single one would have no more."""
    asked = settings.max_model_len is not None or settings.sequences == 1
    if asked or plan.capacity.length >= (spec.max_context or plan.capacity.length):
        return None
    alone = with_options(settings, {"max_sequences": 1})
    length = decide(spec, alone, plan.available_bytes, accelerator_free).capacity.length
    return length if length > plan.capacity.length else None


def _shortage(plan: MemoryPlan, settings: EngineSettings) -> str:
    if not plan.fits_main:
        needed = f"{in_gb(plan.main_bytes)} of main memory"
        parts = _listed(part for part in plan.parts if part.main)
        there = f"{in_gb(plan.available_bytes, up=False)} are available"
    else:
        limit = plan.accelerator_limit_bytes
        assert limit is not None, "a plan that fits is not refused"
        needed = f"{in_gb(plan.accelerator_bytes)} in the accelerator"
        parts = _listed(part for part in plan.parts if part.accelerator)
        there = (
            f"{in_gb(limit, up=False)} are free there"
            if _is_full(plan, settings)
            else f"--gpu-memory allows {in_gb(limit, up=False)}"
        )
    return f"{plan.model} needs {needed}: {parts}; {there}"


def _is_full(plan: MemoryPlan, settings: EngineSettings) -> bool:
    """Whether the accelerator has less than it was allowed to use."""
    allowed, limit = settings.gpu_memory_gb, plan.accelerator_limit_bytes
    return limit is not None and (allowed is None or limit < round(allowed * GB))


def _listed(parts: Iterable[MemoryPart]) -> str:
    return ", ".join(f"{part.name} {in_gb(part.bytes)} ({part.detail})" for part in parts)


def _advice(plan: MemoryPlan, settings: EngineSettings, try_out: Decide) -> str:
    def fits(**fields: Any) -> bool:
        try:
            return try_out(with_options(settings, fields)).fits
        except MoesaicError:  # a change may also be impossible
            return False

    changes = _changes(plan, settings, fits)
    helpful = [change.words for change in changes if fits(**change.fields)]
    smallest = _smallest(plan, settings)
    if not helpful and fits(**smallest.fields):
        helpful = [f"all of {smallest.words}"]
    less = [] if helpful else _less_memory(smallest, settings, try_out)
    return f"Use {', or '.join([*helpful, _more_memory(plan, settings), *less])}"


def _changes(plan: MemoryPlan, settings: EngineSettings, fits: Fits) -> Iterator[Change]:
    """Each as small a change as may help; some do not."""
    if settings.sequences > 1:
        sequences = largest(1, settings.sequences - 1, lambda n: fits(max_sequences=n))
        yield Change(f"--max-sequences {sequences}", {"max_sequences": sequences})
    if settings.max_model_len is not None and settings.max_model_len > MIN_LENGTH:
        high = settings.max_model_len - 1
        length = largest(MIN_LENGTH, high, lambda n: fits(max_model_len=n))
        yield Change(f"--max-model-len {length}", {"max_model_len": length})
    if settings.kv_tokens is not None:
        least = settings.max_model_len or MIN_LENGTH
        tokens = largest(least, settings.kv_tokens, lambda n: fits(kv_tokens=n))
        yield Change(f"--kv-tokens {tokens}", {"kv_tokens": tokens})
    if settings.kv_dtype != INT8 and not settings.capabilities.own_memory:  # slower on a GPU
        yield Change(f"--kv-dtype {INT8}", {"kv_dtype": INT8})
    if settings.kv_host_gb:
        yield Change("--kv-host 0", {"kv_host_gb": 0.0})
    if settings.capabilities.moves:
        ratios = (percent / 100 for percent in range(99, -1, -1))
        ratio = next((ratio for ratio in ratios if fits(cache_ratio=ratio)), 0.0)
        yield Change(f"--cache-ratio {ratio:g}", {"cache_ratio": ratio})
    if plan.dtype == "fp32":
        experts = settings.expert_dtype if settings.expert_dtype.startswith("int") else "auto"
        yield Change("--dtype bf16", {"dtype": "bf16", "expert_dtype": experts})
    bits = BITS_PER_WEIGHT[plan.expert_dtype]
    smaller = [d for d in ("int8", "int4") if BITS_PER_WEIGHT[d] < bits]
    for dtype in [dtype for dtype in smaller if fits(expert_dtype=dtype)][:1]:
        yield Change(f"--expert-dtype {dtype}", {"expert_dtype": dtype})
    if settings.capabilities.moves and settings.dense_dtype == "auto":
        for dtype in [dtype for dtype in ("int8", "int4") if fits(dense_dtype=dtype)][:1]:
            yield Change(f"--dense-dtype {dtype}", {"dense_dtype": dtype})
    if needing_slots(settings.policies):
        yield Change("--schedule best-split", {"schedule": "best-split"})


def _smallest(plan: MemoryPlan, settings: EngineSettings) -> Change:
    """Everything together, as small as it goes."""
    length = min(plan.capacity.length, MIN_LENGTH)  # the model's own, if that is shorter
    changes = [Change("--expert-dtype int4", {"expert_dtype": "int4"})]
    if settings.sequences > 1:
        changes.append(Change("--max-sequences 1", {"max_sequences": 1}))
    changes.append(Change(f"--max-model-len {length}", {"max_model_len": length}))
    if settings.kv_tokens is not None:
        changes.append(Change(f"--kv-tokens {length}", {"kv_tokens": length}))
    if settings.kv_host_gb:
        changes.append(Change("--kv-host 0", {"kv_host_gb": 0.0}))
    if settings.capabilities.moves:
        changes.append(Change("--cache-ratio 0", {"cache_ratio": 0.0}))
    words = ", ".join(change.words for change in changes)
    fields = {name: value for change in changes for name, value in change.fields.items()}
    return Change(words, fields)


def _less_memory(smallest: Change, settings: EngineSettings, try_out: Decide) -> list[str]:
    """Where no change alone helps on this machine: the smallest change with which all together
    do."""
    try:
        least = try_out(with_options(settings, smallest.fields))
    except MoesaicError:
        return []
    if least.fits_main or not least.fits_accelerator:
        return []
    needed = in_gb(main_memory_needed(least))
    return [f"a machine with {needed} of available memory and all of {smallest.words}"]


def _more_memory(plan: MemoryPlan, settings: EngineSettings) -> str:
    """What would be enough for what was asked."""
    words = []
    if not plan.fits_main:
        words.append(f"a machine with {in_gb(main_memory_needed(plan))} of available memory")
    if not plan.fits_accelerator and _is_full(plan, settings):
        words.append(f"a GPU with {in_gb(plan.accelerator_bytes)} free")
    elif not plan.fits_accelerator:
        words.append(f"--gpu-memory {math.ceil(plan.accelerator_bytes / GB * 100) / 100:g}")
    return " and ".join(words)
