"""Spans as a Chrome trace, for ui.perfetto.dev and chrome://tracing.

One track per lane and one for the steps; times in microseconds from the first step shown."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple

from moesaic.core.report import Span
from moesaic.core.units import NS_PER_US

_PROCESS = 1


class TracedStep(NamedTuple):
    """One step as it happened; transfers may reach over its edges."""

    number: int
    start_ns: int
    end_ns: int
    tokens: int


def chrome_trace(events: list[dict[str, Any]], **about: str) -> dict[str, Any]:
    """The whole file, as JSON has it; `about` says what it shows and how it was made."""
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def chrome_events(
    title: str, first_lanes: Sequence[str], spans: Sequence[Span], steps: Sequence[TracedStep]
) -> list[dict[str, Any]]:
    """Metadata first, then complete events in order of their start. The tracks of `first_lanes`
    come before those of other lanes, also where nothing ran there."""
    lanes = list(dict.fromkeys(("step", *first_lanes, *(span.lane for span in spans))))
    origin = steps[0].start_ns
    work = [span for span in spans if span.end_ns > origin]
    names = dense_names(work, {step.end_ns for step in steps})
    complete = [_step(step, origin) for step in steps]
    complete += [_event(span, names.get(span), lanes, origin) for span in work]
    complete.sort(key=lambda event: (event["ts"], event["tid"]))
    return [*_metadata(title, lanes), *complete]


def with_heads(spans: Sequence[Span], layers: int, ends: Sequence[int]) -> list[Span]:
    """The same spans, of real steps that ended at these times. What a step ends with belongs to
    none of its routed layers: the head."""
    return [
        span._replace(layer=-1, end_ns=ends[min(bisect_left(ends, span.end_ns), len(ends) - 1)])
        if span.kind == "dense" and span.layer == layers
        else span
        for span in spans
    ]


def dense_names(spans: Sequence[Span], heads: set[int]) -> dict[Span, str]:
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


def _step(step: TracedStep, origin: int) -> dict[str, Any]:
    args = {"step": step.number, "tokens": step.tokens}
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
