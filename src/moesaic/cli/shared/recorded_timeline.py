"""Recorded real decode steps, as pictures and Chrome traces show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moesaic.cli.shared.timeline_info import TimelineInfo
from moesaic.cli.study.simulate_recording import RecordedStep, Recording
from moesaic.core.offloading import CPU, GPU, PCIE
from moesaic.core.report import ENGINE
from moesaic.core.units import NS_PER_S
from moesaic.hardware.host import cpu_name

if TYPE_CHECKING:
    from moesaic.engine.engine_settings import EngineSettings
    from moesaic.engine.memory.memory_plan import MemoryPlan
    from moesaic.lab.bench.step_recorder import StepRecorder


def recording_of(recorder: StepRecorder) -> Recording:
    steps = [
        RecordedStep(number, report.start_ns, report.end_ns)
        for number, report in enumerate(recorder.reports)
    ]
    return Recording(warmup=0, timeline=recorder.timeline, steps=steps)


def recorded_info(
    recorder: StepRecorder, settings: EngineSettings, plan: MemoryPlan, routing: str, batch: int = 1
) -> TimelineInfo:
    """`routing`: its origin, in two words."""
    alone = not settings.capabilities.moves
    share = f"{plan.cache_ratio:.0%} of the {plan.expert_dtype} experts in the accelerator"
    return TimelineInfo(
        kind=f"measured, {routing}",
        model=plan.model,
        machine=cpu_name() or "this machine",
        phase="decode",
        setting="all experts on the CPU" if alone else f"{share}: {settings.policies}",
        latencies_s=[report.latency_ns / NS_PER_S for report in recorder.reports],
        tokens_per_step=batch,
        lanes=(CPU, ENGINE) if alone else (GPU, CPU, PCIE, ENGINE),
        emulated=not settings.capabilities.own_memory,
    )
