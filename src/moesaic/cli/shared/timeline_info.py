"""The captions of a timeline picture, of a simulated or a real run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from moesaic.cli.study.simulate_recording import routing_kind
from moesaic.lab.simulate.result import Result

LANES = ("gpu", "cpu", "pcie", "planner")  # top to bottom


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

    @property
    def mean_s(self) -> float:
        return mean(self.latencies_s)


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
