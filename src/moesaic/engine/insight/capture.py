"""The next steps as a file: their spans for ui.perfetto.dev, or their routing for the simulator."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Protocol

from moesaic.core.chrome_trace import TracedStep, chrome_events, chrome_trace, with_heads
from moesaic.core.errors import ImpossibleSetting
from moesaic.core.offloading import CPU, GPU, PCIE
from moesaic.core.report import ENGINE, StepReport
from moesaic.engine.insight.capture_order import CaptureOrder
from moesaic.engine.recording import RoutingRecording
from moesaic.engine.runner import Runner


class Capture(Protocol):
    """`begin` before the first step, `add` after each, and `end`, which returns the file."""

    recording: RoutingRecording | None  # what listens to the routers

    def begin(self) -> None: ...

    def add(self, report: StepReport) -> None: ...

    def end(self) -> bytes: ...

    def abandon(self) -> None:
        """Leave everything as it was before `begin`."""


def make_capture(order: CaptureOrder, runner: Runner, machine: str) -> Capture:
    """`machine`: what it is called in the file."""
    if order.kind == "perfetto":
        return SpanCapture(runner, machine)
    return RoutingCapture(runner)


class SpanCapture:
    """Switches the machine's timeline on. Recording spans takes time."""

    def __init__(self, runner: Runner, machine: str) -> None:
        self.recording: RoutingRecording | None = None  # routers need no listener
        self._runner, self._machine = runner, machine
        self._reports: list[StepReport] = []

    def begin(self) -> None:
        timeline = self._runner.machine.timeline
        self._before = timeline.enabled, timeline.engine
        timeline.spans.clear()
        timeline.enabled = timeline.engine = True

    def add(self, report: StepReport) -> None:
        self._reports.append(report)

    def end(self) -> bytes:
        spans, reports = list(self._runner.machine.timeline.spans), self._reports
        self.abandon()
        model = self._runner.decoder.architecture.spec
        layers, moves = model.num_moe_layers, self._runner.machine.capabilities.moves
        spans = with_heads(spans, layers, [report.end_ns for report in reports])
        title = f"{model.name} on {self._machine}, {len(reports)} steps of a server (measured)"
        lanes = (GPU, CPU, PCIE, ENGINE) if moves else (CPU, ENGINE)
        steps = [
            TracedStep(number, each.start_ns, each.end_ns, each.tokens)
            for number, each in enumerate(reports)
        ]
        events = chrome_events(title, lanes, spans, steps)
        trace = chrome_trace(events, command="POST /insight/capture", model=model.name)
        return json.dumps(trace, separators=(",", ":")).encode()

    def abandon(self) -> None:
        timeline = self._runner.machine.timeline
        timeline.enabled, timeline.engine = self._before
        timeline.spans.clear()


class RoutingCapture:
    """Every request is a document, from the first token that a captured step computed on. Passes
    run where Python sees their routing, as with a recording of a whole run."""

    def __init__(self, runner: Runner) -> None:
        self._adapter = runner.machine.layerwise.network.adapter
        spec = runner.decoder.architecture.spec
        self._wanted = min(2 * spec.top_k, spec.num_experts)
        self._folder = tempfile.TemporaryDirectory(prefix="moesaic-capture-")
        self._file = Path(self._folder.name) / "routing.moet"
        source = f"recorded while {spec.name} was served"
        self.recording: RoutingRecording | None = RoutingRecording(self._file, spec, source)

    def begin(self) -> None:
        """Routings have ranks and weights from here on, also where nothing is decided by them."""
        self._before = self._adapter.ranks
        self._adapter.rank_at_least(self._wanted)

    def add(self, report: StepReport) -> None:
        """The listener has what there is to know."""

    def end(self) -> bytes:
        recording = self.recording
        assert recording is not None, "it ends once"
        self._adapter.rank(self._before)
        self.recording = None
        with self._folder:
            recording.close()
            if not self._file.exists():
                raise ImpossibleSetting(
                    "a request failed in one of these steps, and a trace has whole ones: ask again"
                )
            return self._file.read_bytes()

    def abandon(self) -> None:
        recording, self.recording = self.recording, None
        self._adapter.rank(self._before)
        if recording is not None:
            recording.discard(ImpossibleSetting("the capture was given up"))
        self._folder.cleanup()
