"""The last decode steps of a run, span by span, for pictures. Recording spans takes time, so these
steps run after the measured ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from moesaic.core.chrome_trace import with_heads
from moesaic.core.report import StepReport, Timeline
from moesaic.engine.runner import Runner
from moesaic.lab.bench.bench_steps import CaseRuns, Repetition, Run, free_slots, run_steps

MAX_STEPS = 32


@dataclass(slots=True)
class StepRecorder:
    """Give `timeline` to the machine before it is made."""

    timeline: Timeline = field(default_factory=lambda: Timeline(enabled=False, engine=True))
    reports: list[StepReport] = field(default_factory=list)

    def record(self, runner: Runner, repetition: Repetition, run: Run = run_steps) -> None:
        """Replaces an earlier recording; `run` does the steps."""
        split = max(len(repetition) - MAX_STEPS, 0)
        run(runner, repetition[:split], CaseRuns(), lambda steps: None)
        self.timeline.spans.clear()
        shown = CaseRuns()
        self.timeline.enabled = True
        try:
            run(runner, repetition[split:], shown, lambda steps: None)
        finally:
            self.timeline.enabled = False
        free_slots(runner)
        self.reports = shown.measured.reports
        layers, ends = len(self.reports[0].layers), [report.end_ns for report in self.reports]
        self.timeline.spans[:] = with_heads(self.timeline.spans, layers, ends)
