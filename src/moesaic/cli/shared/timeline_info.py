"""The captions of a timeline picture, of a simulated or a real run, and recorded real decode steps
as pictures and Chrome traces show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING

from moesaic.cli.study.simulate_recording import RecordedStep, Recording, routing_kind
from moesaic.core.offloading import CPU, GPU, PCIE
from moesaic.core.report import ENGINE
from moesaic.core.units import NS_PER_S
from moesaic.hardware.host import cpu_name
from moesaic.lab.simulate.result import Result

if TYPE_CHECKING:
    from moesaic.engine.engine_settings import EngineSettings
    from moesaic.engine.memory.memory_plan import MemoryPlan
    from moesaic.lab.bench.step_recorder import StepRecorder


LANES = ("gpu", "cpu", "pcie", "planner")  # top to bottom
NAMES = {"gpu": "GPU", "cpu": "CPU", "pcie": "PCIe"}  # of lanes, where not their own


@dataclass(frozen=True, slots=True)
class TimelineInfo:
    kind: str  # "simulated, synthetic routing"
    model: str
    machine: str
    phase: str
    setting: str  # where experts are, and under which policies
    latencies_s: Sequence[float]  # of all steps, by their number
    tokens_per_step: int
    lanes: tuple[str, ...] = LANES  # those that could work
    emulated: bool = False  # there is no GPU: CPU threads play its part

    @property
    def mean_s(self) -> float:
        return mean(self.latencies_s)

    @property
    def batch_words(self) -> str:
        decoding = self.phase == "decode" and self.tokens_per_step > 1
        return f", batch {self.tokens_per_step}" if decoding else ""

    def lane_name(self, lane: str) -> str:
        name = NAMES.get(lane, lane)
        return f"emulated\n{name}" if self.emulated and lane in (GPU, PCIE) else name


def timeline_info(run: Result | TimelineInfo) -> TimelineInfo:
    if isinstance(run, TimelineInfo):
        return run
    s = run.settings
    share = f"{s.cache_ratio:.0%} of the {s.expert_dtype} experts in GPU memory"
    return TimelineInfo(
        kind=f"simulated, {routing_kind(run)}",
        model=s.model.name,
        machine=s.machine.name,
        phase=s.phase,
        setting=f"{share}: {s.policies.for_phase(s.phase)}",
        latencies_s=run.latencies_s,
        tokens_per_step=s.tokens_per_step,
    )


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
