"""A recording as a Chrome trace; see `core/chrome_trace.py`."""

from __future__ import annotations

import json
from typing import Any

from moesaic.cli.shared.timeline_info import TimelineInfo, timeline_info
from moesaic.cli.study.simulate_recording import Recording
from moesaic.core.chrome_trace import TracedStep, chrome_events, chrome_trace
from moesaic.core.files import whole_file
from moesaic.lab.simulate.result import Result


def write_perfetto(
    path: str, run: Result | TimelineInfo, recording: Recording, command: str
) -> None:
    info = timeline_info(run)
    trace = chrome_trace(events(info, recording), command=command, model=info.model)
    with whole_file(path, "w") as stream:
        json.dump(trace, stream, separators=(",", ":"))


def events(info: TimelineInfo, recording: Recording) -> list[dict[str, Any]]:
    title = f"{info.model} on {info.machine}, {info.phase} ({info.kind})"
    steps = [TracedStep(*step, info.tokens_per_step) for step in recording.steps]
    return chrome_events(title, info.lanes, recording.timeline.spans, steps)
