"""The captions of a timeline picture, of a simulated or a real run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from moesaic.cli.study.simulate_recording import routing_kind
from moesaic.core.offloading import GPU, PCIE
from moesaic.lab.simulate.result import Result

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
