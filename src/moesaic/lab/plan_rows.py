"""A model in every precision on one machine: what each needs, whether it fits, how fast it is.

Nothing is refused: a precision that does not fit is a row that says so.

The smallest machine that a model can run on follows from the same memory plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from moesaic.core.dtypes import BITS_PER_WEIGHT
from moesaic.core.errors import ImpossibleSetting
from moesaic.core.units import GB
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory.fitting import DEFAULT_LENGTH, decide
from moesaic.engine.memory.plan_parts import MemoryPlan
from moesaic.engine.memory.refusal import main_memory_needed, short_refusal
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.lab.speed_estimate import SpeedEstimate, estimate_speed
from moesaic.model_info.model_spec import ModelSpec
from moesaic.policies.policy_set import PolicySet

PRECISIONS = ("bf16", "int8", "int4")  # of the routed experts
_PLENTY = 10**18  # bytes of main memory: nothing is cut to fit


@dataclass(frozen=True, slots=True)
class PlanningTarget:
    """The machine that is planned for. `accelerator_free`: bytes of its GPU that may be used, where
    the settings do not say."""

    available: int
    accelerator_free: int | None
    machine: MachineSpec | None  # None: not described, so speed cannot be estimated
    measured: bool  # see `estimate_speed`


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One precision. The plan has the largest capacity that fits, or the smallest, which does not.
    `problem` says why it does not fit, or fits without the machine's GPU only. `stored`: what runs
    where no precision is asked for."""

    stored: bool
    settings: EngineSettings
    plan: MemoryPlan
    smallest: SmallestMachine
    problem: str | None = None
    speed: SpeedEstimate | None = None
    no_speed: str | None = None  # why the speed of what fits is not estimated

    @property
    def main_bytes(self) -> int:
        """What must be available, with what is left free."""
        return main_memory_needed(self.plan)


def plan_rows(
    spec: ModelSpec, settings: EngineSettings, target: PlanningTarget, packed: bool = False
) -> list[PlanRow]:
    """The stored precision, and those that experts can be converted to, from large to small; of a
    packed model there are no others."""
    stored = _row(spec, settings, target, stored=True)
    if packed:
        return [stored]
    rows = []
    for dtype in PRECISIONS:
        if dtype == stored.plan.expert_dtype:
            continue
        # Experts in floating point have the precision of the rest.
        dense = dtype if dtype == "bf16" else settings.dtype
        asked = replace(settings, dtype=dense, expert_dtype=dtype)
        rows.append(_row(spec, asked, target, stored=False))
    return sorted([stored, *rows], key=lambda row: -BITS_PER_WEIGHT[row.plan.expert_dtype])


def left_for_gpu(spec: ModelSpec, settings: EngineSettings, target: PlanningTarget) -> int | None:
    """The bytes that the GPU may use. Where it has no memory of its own, the engine's copies for it
    lie beside what they are copies of."""
    machine, free = target.machine, target.accelerator_free
    if machine is None or machine.unified is None or free is None:
        return free
    main = main_memory_needed(decide(spec, settings, target.available, free))
    return max(min(free, round(machine.unified.memory_gb * GB) - main), 0)


def _row(
    spec: ModelSpec, settings: EngineSettings, target: PlanningTarget, stored: bool
) -> PlanRow:
    free = left_for_gpu(spec, settings, target)
    plan = decide(spec, settings, target.available, free)
    problem = None if plan.fits else short_refusal(plan)
    without = None if problem is None else settings.without_gpu(problem)
    if without is not None:  # as a run would
        on_cpu = decide(spec, without, target.available)
        if on_cpu.fits:
            settings, plan = without, on_cpu
    row = PlanRow(stored, settings, plan, smallest_machine(spec, settings), problem)
    if target.machine is None or not plan.fits:
        return row
    try:
        speed = estimate_speed(spec, settings, plan, target.machine, target.measured)
    except ImpossibleSetting as error:
        return replace(row, no_speed=str(error))
    return replace(row, speed=speed)


@dataclass(frozen=True, slots=True)
class SmallestMachine:
    """Bytes of available memory. With a GPU, main memory still holds every expert."""

    context: int  # tokens of one sequence
    main_bytes: int  # without a GPU
    main_bytes_with_gpu: int
    gpu_bytes: int  # with the smallest cache of experts
    gpu_bytes_for_all: int  # with all experts in it


def smallest_machine(spec: ModelSpec, settings: EngineSettings) -> SmallestMachine:
    """The smallest machine for one sequence of a usual length, in the precisions of the settings,
    on the machine that they are for."""
    context = min(spec.max_context or DEFAULT_LENGTH, DEFAULT_LENGTH)

    one = replace(settings, accelerator="none", max_sequences=1, max_model_len=context)

    def planned(**changes: Any) -> MemoryPlan:
        return decide(spec, replace(one, **changes), _PLENTY)

    alone = planned(policies=PolicySet())  # which policies there are matters with slots only
    # In one byte no cache fits: the plan then has the smallest.
    least = planned(accelerator="cuda", gpu_memory_gb=1 / GB)
    return SmallestMachine(
        context=context,
        main_bytes=main_memory_needed(alone),
        main_bytes_with_gpu=main_memory_needed(least),
        gpu_bytes=least.accelerator_bytes,
        gpu_bytes_for_all=planned(accelerator="cuda", cache_ratio=1.0).accelerator_bytes,
    )
