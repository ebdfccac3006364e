"""At most one capture of the next steps, from its order to its file."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress

from moesaic.core.errors import EngineFailed, ImpossibleSetting
from moesaic.engine.insight.capture import Capture, make_capture
from moesaic.engine.insight.capture_order import CaptureOrder
from moesaic.engine.insight.settle import refuse, settle
from moesaic.engine.recording import RoutingRecording
from moesaic.engine.runner import Runner
from moesaic.hardware.host import cpu_name

_ENDED = "the engine has ended its work before a step was captured"


class Captures:
    """Used by the batcher's thread alone. A step belongs to a capture that began before it."""

    def __init__(self, runner: Runner, records: bool) -> None:
        """`records`: the routing of the whole run is recorded."""
        self._runner, self._records = runner, records
        self._order: CaptureOrder | None = None
        self._capture: Capture | None = None  # that has begun
        self._result: Future[bytes] = Future()
        self._steps = 0

    @property
    def wanted(self) -> bool:
        """Whether the next step is to be captured."""
        return self._order is not None

    @property
    def recording(self) -> RoutingRecording | None:
        return None if self._capture is None else self._capture.recording

    def order(self, order: CaptureOrder, result: Future[bytes]) -> None:
        """The result has the file, or why there is none."""
        why = self._refusal(order)
        if why is not None:
            refuse(result, ImpossibleSetting(why))
            return
        self._order, self._result, self._steps = order, result, 0

    def _refusal(self, order: CaptureOrder) -> str | None:
        if self._order is not None:
            return (
                f"a capture of {self._order.steps} steps is under way, and there is one at a time: "
                "ask again when it has ended"
            )
        if order.kind == "routing" and self._records:
            return "the routing of the whole run is recorded: read that file when the engine ends"
        if order.kind == "routing" and self._runner.gate.draft:
            return (
                f"gate {self._runner.gate_name!r} runs tokens that may not stand, and a trace has "
                "the passes that stood: capture spans (perfetto), or use another gate"
            )
        return None

    def begin(self) -> None:
        """Before a step; no other one is under way."""
        if self._order is None or self._capture is not None:
            return
        try:
            capture = make_capture(self._order, self._runner, cpu_name() or "this machine")
            capture.begin()
        except Exception as error:
            self.fail(error)
        else:
            self._capture = capture

    def add(self) -> None:
        """A step is done."""
        if self._order is None or self._capture is None:
            return
        report = self._runner.report
        assert report is not None, "a step is done"
        self._capture.add(report)
        self._steps += 1
        if self._steps == self._order.steps:
            self.end()

    def end(self) -> None:
        """With the steps that there are."""
        capture, result = self._capture, self._result
        if self._order is None:
            return
        if capture is None or not self._steps:
            self.fail(
                ImpossibleSetting(
                    "no step ran while the capture waited: ask a question meanwhile, or wait "
                    "longer (wait_s)"
                )
            )
            return
        self._order = self._capture = None
        try:
            data = capture.end()  # also where the result is not wanted any more
        except Exception as error:
            refuse(result, error)
        else:
            settle(result, lambda: data)

    def fail(self, error: BaseException | None = None) -> None:
        """Give up the capture, if there is one."""
        capture, result, order = self._capture, self._result, self._order
        self._order = self._capture = None
        if capture is not None:
            with suppress(Exception):
                capture.abandon()
        if order is not None:
            refuse(result, error if isinstance(error, Exception) else EngineFailed(_ENDED))
