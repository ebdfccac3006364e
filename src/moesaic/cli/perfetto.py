"""A recording as a Chrome trace, for ui.perfetto.dev and chrome://tracing.

One track per lane and one for the steps; times in microseconds from the first step shown."""

from __future__ import annotations

import json
from typing import Any

from moesaic.cli.recording import Recording
from moesaic.core.files import whole_file
from moesaic.core.report import Span
from moesaic.core.units import NS_PER_US
from moesaic.engine.settings import Settings

_PROCESS = 1
_LANES = ("step", "gpu", "cpu", "pcie")  # in the order shown; others follow


def write_perfetto(path: str, settings: Settings, recording: Recording, command: str) -> None:
    trace = {
        "traceEvents": events(settings, recording),
        "displayTimeUnit": "ms",
        "otherData": {"command": command, "model": settings.model.name},
    }
    with whole_file(path, "w") as stream:
        json.dump(trace, stream, separators=(",", ":"))


def events(settings: Settings, recording: Recording) -> list[dict[str, Any]]:
    """Metadata first, then complete events in order of their start."""
    lanes = list(dict.fromkeys((*_LANES, *recording.timeline.lanes)))
    origin = recording.steps[0].start_ns
    tokens = settings.tokens_per_step
    steps = [
        Span("step", "step", s.start_ns, s.end_ns, -1, s.number, tokens) for s in recording.steps
    ]
    work = [span for span in recording.timeline.spans if span.end_ns > origin]
    complete = [_event(span, lanes, origin) for span in (*steps, *work)]
    complete.sort(key=lambda event: (event["ts"], event["tid"]))
    title = f"{settings.model.name} on {settings.machine.name}, {settings.phase}"
    return [*_metadata(title, lanes), *complete]


def _event(span: Span, lanes: list[str], origin: int) -> dict[str, Any]:
    """A transfer that began before the first step shown is cut to begin with it."""
    start = max(span.start_ns, origin)
    return {
        "ph": "X",
        "name": _name(span),
        "cat": span.kind,
        "pid": _PROCESS,
        "tid": lanes.index(span.lane),
        "ts": (start - origin) / NS_PER_US,
        "dur": (span.end_ns - start) / NS_PER_US,
        "args": {"layer": span.layer, "expert": span.expert, "tokens": span.tokens},
    }


def _name(span: Span) -> str:
    if span.kind == "step":
        return f"step {span.expert}"
    words = span.kind if span.expert < 0 else f"{span.kind} {span.expert}"
    return words if span.layer < 0 else f"{words}, layer {span.layer}"


def _metadata(title: str, lanes: list[str]) -> list[dict[str, Any]]:
    found = [_label("process_name", 0, {"name": title})]
    for number, lane in enumerate(lanes):
        found.append(_label("thread_name", number, {"name": lane}))
        found.append(_label("thread_sort_index", number, {"sort_index": number}))
    return found


def _label(name: str, thread: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": _PROCESS, "tid": thread, "ts": 0, "args": args}
