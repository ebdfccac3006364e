"""Why a plan does not fit, in numbers, and what to change: every change it names was tried.

A change is an option and a value; those that help on their own come first, else all together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from moesaic.core.dtypes import BITS_PER_WEIGHT
from moesaic.core.errors import MoesaicError
from moesaic.core.units import GB
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory_plan import SHORTEST, SPARE, MemoryPlan, Part, largest, needing_slots

Decide = Callable[[EngineSettings], MemoryPlan]
_MB = 1_000_000


class Change(NamedTuple):
    words: str
    fields: dict[str, Any]


def refusal(plan: MemoryPlan, settings: EngineSettings, decide: Decide) -> str:
    schedule = needing_slots(settings)
    why = f" (schedule {schedule!r} needs a slot for every layer)" if schedule else ""
    return f"{_lack(plan)}{why}. {_advice(plan, settings, decide)}"


def in_gb(size: float, up: bool = True) -> str:
    """Two digits after the point, rounded up (needs) or down (what there is)."""
    unit, name = (GB, "GB") if size >= GB / 10 else (_MB, "MB")
    rounded = (math.ceil if up else math.floor)(size / unit * 100)
    return f"{rounded / 100:.2f} {name}"


def _lack(plan: MemoryPlan) -> str:
    if not plan.fits_main:
        needed = f"{in_gb(plan.main_bytes)} of main memory"
        parts = _listed(part for part in plan.parts if part.main)
        there = f"{in_gb(plan.available_bytes, up=False)} are available"
    else:
        limit = plan.accelerator_limit_bytes
        assert limit is not None, "a plan that fits is not refused"
        needed = f"{in_gb(plan.accelerator_bytes)} in the accelerator"
        parts = _listed(part for part in plan.parts if part.accelerator)
        there = f"--gpu-memory allows {in_gb(limit, up=False)}"
    return f"{plan.model} needs {needed}: {parts}; {there}"


def _listed(parts: Iterable[Part]) -> str:
    return ", ".join(f"{part.name} {in_gb(part.bytes)} ({part.detail})" for part in parts)


def _advice(plan: MemoryPlan, settings: EngineSettings, decide: Decide) -> str:
    def fits(**fields: Any) -> bool:
        try:
            return decide(replace(settings, **fields)).fits
        except MoesaicError:  # a change may also be impossible
            return False

    more = _more_memory(plan, fits)
    helpful = [change.words for change in _changes(settings, fits) if fits(**change.fields)]
    if helpful:
        return f"Use {', or '.join([*helpful, *more])}"
    smallest = _smallest(settings)
    if fits(**smallest.fields):
        return f"Use {', or '.join([f'all of {smallest.words}', *more])}"
    return f"Use {', or '.join(more)}" if more else "Use a smaller model"


def _changes(settings: EngineSettings, fits: Callable[..., bool]) -> Iterator[Change]:
    """Each as large as it may be; some may not fit nevertheless."""
    sequences = largest(1, settings.max_sequences - 1, lambda n: fits(max_sequences=n))
    if settings.max_sequences > 1:
        yield Change(f"--max-sequences {sequences}", {"max_sequences": sequences})
    if settings.max_model_len is not None:
        length = largest(1, settings.max_model_len - 1, lambda n: fits(max_model_len=n))
        if length >= min(SHORTEST, settings.max_model_len):
            yield Change(f"--max-model-len {length}", {"max_model_len": length})
    if settings.accelerator != "none":
        ratios = (percent / 100 for percent in range(99, -1, -1))
        ratio = next((r for r in ratios if fits(cache_ratio=r)), None)
        if ratio is not None:
            yield Change(f"--cache-ratio {ratio:g}", {"cache_ratio": ratio})
    if settings.dtype == "fp32":
        experts = settings.expert_dtype if settings.expert_dtype.startswith("int") else "auto"
        yield Change("--dtype bf16", {"dtype": "bf16", "expert_dtype": experts})
    for dtype in ("int8", "int4"):
        if _is_smaller(dtype, settings.expert_dtype) and fits(expert_dtype=dtype):
            yield Change(f"--expert-dtype {dtype}", {"expert_dtype": dtype})
            break
    if settings.schedule != "best-split" or settings.prefill_schedule is not None:
        split = {"schedule": "best-split", "prefill_schedule": None}
        yield Change("--schedule best-split", split)


def _is_smaller(dtype: str, than: str) -> bool:
    return BITS_PER_WEIGHT[dtype] < BITS_PER_WEIGHT.get(than, math.inf)


def _smallest(settings: EngineSettings) -> Change:
    """Everything together, as small as it goes."""
    words = ["--expert-dtype int4", "--max-sequences 1", f"--max-model-len {SHORTEST}"]
    fields = {"expert_dtype": "int4", "max_sequences": 1, "max_model_len": SHORTEST}
    if settings.accelerator != "none":
        words.append("--cache-ratio 0")
        fields["cache_ratio"] = 0.0
    return Change(", ".join(words), fields)


def _more_memory(plan: MemoryPlan, fits: Callable[..., bool]) -> list[str]:
    """What would be enough for what was asked."""
    if not plan.fits_main:
        spare = round(SPARE * plan.available_bytes)
        needed = (plan.main_bytes - spare) / (1 - SPARE)
        return [f"a machine with {in_gb(needed)} of available memory"]
    needed = math.ceil(plan.accelerator_bytes / GB * 100) / 100
    return [f"--gpu-memory {needed:g}"] if fits(gpu_memory_gb=needed) else []
