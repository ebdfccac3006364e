"""A recording as a Chrome trace, for ui.perfetto.dev and chrome://tracing.

One track per lane and one for the steps; times in microseconds from the first step shown."""

from __future__ import annotations

import json
from typing import Any

from moesaic.cli.shared.timeline_info import TimelineInfo, timeline_info
from moesaic.cli.study.simulate_recording import RecordedStep, Recording
from moesaic.core.files import whole_file
from moesaic.core.report import Span
from moesaic.core.units import NS_PER_US
from moesaic.lab.simulate.result import Result

_PROCESS = 1


def write_perfetto(
    path: str, run: Result | TimelineInfo, recording: Recording, command: str
) -> None:
    info = timeline_info(run)
    trace = {
        "traceEvents": events(info, recording),
        "displayTimeUnit": "ms",
        "otherData": {"command": command, "model": info.model},
    }
    with whole_file(path, "w") as stream:
        json.dump(trace, stream, separators=(",", ":"))


def events(info: TimelineInfo, recording: Recording) -> list[dict[str, Any]]:
    """Metadata first, then complete events in order of their start."""
    lanes = list(dict.fromkeys(("step", *info.lanes, *recording.timeline.lanes)))
    origin = recording.steps[0].start_ns
    work = [span for span in recording.timeline.spans if span.end_ns > origin]
    heads = {step.end_ns for step in recording.steps}
    names = dense_names(work, heads)
    complete = [_step(step, info.tokens_per_step, origin) for step in recording.steps]
    complete += [_event(span, names.get(span), lanes, origin) for span in work]
    complete.sort(key=lambda event: (event["ts"], event["tid"]))
    title = f"{info.model} on {info.machine}, {info.phase} ({info.kind})"
    return [*_metadata(title, lanes), *complete]


def dense_names(spans: list[Span], heads: set[int]) -> dict[Span, str]:
    """What each dense span is. A layer's attention comes first and its shared experts next, a
    step ends with the head (`heads` are the ends of steps); what else is of no MoE layer is a
    layer without experts."""
    names: dict[Span, str] = {}
    before = -1
    dense = sorted((s for s in spans if s.kind == "dense"), key=lambda s: s.start_ns)
    last = {max((s for s in dense if s.end_ns <= end), key=_end, default=None) for end in heads}
    for span in dense:
        if span.layer >= 0:
            names[span] = "shared experts" if span.layer == before else "attention"
        else:
            names[span] = "head" if span in last else "dense layer"
        before = span.layer
    return names


def _end(span: Span) -> int:
    return span.end_ns


def _step(step: RecordedStep, tokens: int, origin: int) -> dict[str, Any]:
    args = {"step": step.number, "tokens": tokens}
    extent = (step.start_ns - origin, step.end_ns - origin)
    return _complete(f"step {step.number}", "step", 0, extent, args)


def _event(span: Span, name: str | None, lanes: list[str], origin: int) -> dict[str, Any]:
    """A transfer that began before the first step shown is cut to begin with it."""
    extent = (max(span.start_ns, origin) - origin, span.end_ns - origin)
    args = {"layer": span.layer, "expert": span.expert, "tokens": span.tokens}
    known: dict[str, Any] = {key: value for key, value in args.items() if value >= 0}
    if len(span.experts) > 1:
        known["experts"] = list(span.experts)
    return _complete(
        _name(span, name or span.kind), span.kind, lanes.index(span.lane), extent, known
    )


def _complete(
    name: str, category: str, lane: int, extent_ns: tuple[int, int], args: dict[str, Any]
) -> dict[str, Any]:
    start, end = extent_ns
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": _PROCESS,
        "tid": lane,
        "ts": start / NS_PER_US,
        "dur": (end - start) / NS_PER_US,
        "args": args,
    }


def _name(span: Span, what: str) -> str:
    words = what if span.expert < 0 else f"{what} {span.expert}"
    if len(span.experts) > 1:
        words = f"{len(span.experts)} {what}s"
    return words if span.layer < 0 else f"{words}, layer {span.layer}"


def _metadata(title: str, lanes: list[str]) -> list[dict[str, Any]]:
    found = [_label("process_name", 0, {"name": title})]
    for number, lane in enumerate(lanes):
        found.append(_label("thread_name", number, {"name": lane}))
        found.append(_label("thread_sort_index", number, {"sort_index": number}))
    return found


def _label(name: str, thread: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": _PROCESS, "tid": thread, "ts": 0, "args": args}
