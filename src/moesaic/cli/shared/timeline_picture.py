"""One step as bars on lanes: all of it above, a few of its layers with expert numbers below.

A row is a lane, or all lanes that differ in their numbers only, as the compute units of DIMMs
do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from moesaic.cli.shared.output import in_time
from moesaic.cli.shared.pictures import (
    FAINT,
    GRID,
    INK,
    legend_below,
    new_figure,
    plain,
    save,
    title_above,
)
from moesaic.cli.shared.timeline_info import TimelineInfo, timeline_info
from moesaic.cli.study.simulate_recording import RecordedStep, Recording
from moesaic.core.report import ENGINE, Span
from moesaic.core.units import NS_PER_MS, NS_PER_US
from moesaic.lab.simulate.result import Result

COLOURS = {
    "dense": "#b8bfc9",
    "expert": "#3b7dc4",
    "transfer": "#d9662b",
    "prefetch": "#f2b872",
    "plan": "#7d5ba6",
    "kv": "#5fa8a0",
    "hand-over": "#c5b3de",
    "start": "#9fc79f",
    "look-ahead": "#d8cf9b",
    "sum": "#d99ab0",
    "launch": "#8fb8b0",
    "return": "#b9cbb0",
    "await-plan": "#ece6f4",
    "await-sum": "#f6e6ec",
}
MEANINGS = {
    "dense": "attention, shared experts, output head",
    "expert": "routed experts, with their numbers",
    "transfer": "expert copied now, the layer waits for it",
    "prefetch": "expert copied ahead, in idle time",
    "plan": "planner decides who computes what",
    "kv": "KV cache in main memory is read or computed with",
    "hand-over": "routing is handed to the planner",
    "start": "experts are handed to the devices",
    "look-ahead": "planner chooses what to copy ahead",
    "sum": "results are collected and added",
    "launch": "the step is launched",
    "return": "logits reach the caller",
    "await-plan": "the GPU waits for the plan",
    "await-sum": "the GPU waits for the CPU's sum",
}
_OF_EVERY_RUN = ("dense", "expert", "transfer", "prefetch", "plan")
ZOOMED_LAYERS = 4
WIDTH_IN, HEIGHT_IN = 10.0, 5.0
ROW_IN = 0.7  # more for every row beyond the usual
USUAL_ROWS = 4
LEAST_FOR_NUMBERS = 0.25  # of a row, the height of bars with numbers
LETTER_SHARE = 0.0075  # of the width of the picture that one letter takes
NAMES = {"ndp": "NDP", "dimm-link": "DIMM\nlinks"}  # of lanes without their numbers
HEIGHTS = {"planner": 0.3, ENGINE: 0.3}  # of a lane's bars, where not the usual
HEIGHT = 0.72
UNITS_SIZE = 2.0  # of a row with several devices, where others have 1
_NUMBERS = re.compile(r"\d+(-\d+)*$")


class TimeWindow(NamedTuple):
    start_ns: int
    end_ns: int

    def shows(self, span: Span) -> bool:
        return span.start_ns < self.end_ns and span.end_ns > self.start_ns


class TimeAxis(NamedTuple):
    """Nanoseconds as both panels show them: since the step began, in one unit."""

    origin_ns: int
    unit_ns: int
    unit: str

    @classmethod
    def of(cls, step: TimeWindow) -> TimeAxis:
        long = step.end_ns - step.start_ns > NS_PER_MS
        scale = (NS_PER_MS, "milliseconds") if long else (NS_PER_US, "microseconds")
        return cls(step.start_ns, *scale)

    def at(self, time_ns: float) -> float:
        return (time_ns - self.origin_ns) / self.unit_ns


def draw_timeline(path: str, run: Result | TimelineInfo, recording: Recording) -> None:
    """A step that is like most."""
    info = timeline_info(run)
    step = recording.typical(info.latencies_s)
    spans = recording.spans_of(step)
    starts = layer_starts(spans, step.start_ns)
    whole = TimeWindow(step.start_ns, step.end_ns)
    zoom, layers = zoom_window(starts, whole, info.phase)
    axis = TimeAxis.of(whole)
    rows = timeline_rows(info, spans)
    more = max(0.0, _edge_of(rows) + 0.5 - USUAL_ROWS)
    figure = new_figure(WIDTH_IN, HEIGHT_IN + ROW_IN * more)
    above, below = figure.subplots(2, 1, gridspec_kw={"height_ratios": (1, 1.35)})
    _panel(above, rows, spans, starts, whole, axis, numbers=False)
    above.axvspan(*map(axis.at, zoom), color="#fff3c4", zorder=0)
    above.set_title(step_label(step, info), loc="left", fontsize=9, color=INK)
    _panel(below, rows, spans, starts, zoom, axis, numbers=True)
    zoomed = f"MoE layers {layers[0]} to {layers[-1]} of it (yellow above)"
    below.set_title(zoomed, loc="left", fontsize=9, color=INK)
    _dress(figure, info, {span.kind for span in spans})
    save(figure, path)


def step_label(step: RecordedStep, info: TimelineInfo) -> str:
    unit = "decode step" if info.phase == "decode" else "prompt"
    own, mean = in_time(info.latencies_s[step.number]), in_time(info.mean_s)
    return f"{unit} {step.number}, all of it: {own} (mean of all: {mean})"


def layer_starts(spans: Sequence[Span], not_before: int) -> dict[int, int]:
    """When each layer began, with its attention."""
    starts: dict[int, int] = {}
    for span in sorted(spans, key=lambda s: s.start_ns):
        if span.kind == "dense" and span.layer >= 0 and span.start_ns >= not_before:
            starts.setdefault(span.layer, span.start_ns)
    return starts


def zoom_window(
    starts: dict[int, int], whole: TimeWindow, phase: str
) -> tuple[TimeWindow, list[int]]:
    """Layers from the middle of a decode step, the first of a prompt."""
    layers = sorted(starts)
    count = ZOOMED_LAYERS if phase == "decode" else 2
    first = max(0, (len(layers) - count) // 2) if phase == "decode" else 0
    shown = layers[first : first + count]
    after = layers[first + count : first + count + 1]
    end = starts[after[0]] if after else whole.end_ns
    return TimeWindow(starts[shown[0]], end), shown


def _panel(
    axes: Any,
    rows: Sequence[Row],
    spans: Sequence[Span],
    starts: dict[int, int],
    window: TimeWindow,
    axis: TimeAxis,
    numbers: bool,
) -> None:
    for row in rows:
        for lanes, middle, height in row.bars():
            shown = [s for s in spans if s.lane in lanes and window.shows(s)]
            for kind, colour in COLOURS.items():
                bars = [(s.start_ns, s.end_ns - s.start_ns) for s in shown if s.kind == kind]
                extents = [(axis.at(start), length / axis.unit_ns) for start, length in bars]
                edge = _edge([length for _, length in bars], colour, window, numbers)
                axes.broken_barh(
                    extents, (middle - height / 2, height), facecolors=colour, zorder=2, **edge
                )
            if numbers and len(lanes) == 1 and height >= LEAST_FOR_NUMBERS:
                _label_bars(axes, shown, middle, window, axis)
    _layer_lines(axes, starts, window, axis, numbers)
    axes.set_xlim(*map(axis.at, window))
    axes.set_ylim(_edge_of(rows), -0.75 if numbers else -0.55)
    axes.set_yticks([row.middle for row in rows], [row.name for row in rows])
    axes.set_xlabel(f"time in {axis.unit}", color=INK, fontsize=9)
    plain(axes)


def _edge_of(rows: Sequence[Row]) -> float:
    """The end of the last row; the first begins at -0.5."""
    return rows[-1].middle + (0.5 if len(rows[-1].parts) == 1 else UNITS_SIZE / 2)


def _edge(lengths: Sequence[int], colour: str, window: TimeWindow, numbers: bool) -> dict[str, Any]:
    """White between bars, but not around bars so short that white would be all one sees."""
    short = max(lengths, default=0) < 0.005 * (window.end_ns - window.start_ns)
    if short:
        return {"edgecolor": colour, "linewidth": 0.4}
    return {"edgecolor": "white", "linewidth": 0.6 if numbers else 0.25}


def _layer_lines(
    axes: Any, starts: dict[int, int], window: TimeWindow, axis: TimeAxis, named: bool
) -> None:
    for layer, start in starts.items():
        if not window.start_ns <= start < window.end_ns:
            continue
        x = axis.at(start)
        axes.axvline(x, color=GRID, linewidth=0.8, zorder=1)
        if named:
            axes.text(x, -0.52, f" layer {layer}", fontsize=8, color=FAINT, va="bottom")


def _label_bars(
    axes: Any, bars: Sequence[Span], row: float, window: TimeWindow, axis: TimeAxis
) -> None:
    """The longest of a bar's names that fits inside it."""
    letter = LETTER_SHARE * (window.end_ns - window.start_ns)
    for span in bars:
        start, end = max(span.start_ns, window.start_ns), min(span.end_ns, window.end_ns)
        for text in _names(span):
            if end - start > (len(text) + 0.6) * letter:
                middle = axis.at((start + end) / 2)
                colour = "white" if span.kind in ("expert", "transfer") else INK
                axes.text(middle, row, text, ha="center", va="center", fontsize=7.5, color=colour)
                break


def _names(span: Span) -> tuple[str, ...]:
    if len(span.experts) > 1:
        return " ".join(map(str, span.experts)), f"{len(span.experts)} experts"
    if span.lane == ENGINE:
        return (span.kind,)
    if span.expert < 0:
        return ()
    number = str(span.expert)
    return (f"{number} of layer {span.layer}", number) if span.kind == "prefetch" else (number,)


def _dress(figure: Any, info: TimelineInfo, kinds: set[str]) -> None:
    """Title and legend, outside the panels."""
    from matplotlib.patches import Patch

    kind = info.kind[0].upper() + info.kind[1:]
    title = f"{kind}: {info.model} on {info.machine}, {info.phase}{info.batch_words}"
    title_above(figure, f"{title}\n{info.setting}")
    shown = [kind for kind in COLOURS if kind in _OF_EVERY_RUN or kind in kinds]
    handles = [Patch(color=COLOURS[kind], label=MEANINGS[kind]) for kind in shown]
    white = Patch(facecolor="white", edgecolor=GRID, label="idle")
    legend_below(figure, [*handles, white])


class Row(NamedTuple):
    name: str
    parts: tuple[tuple[str, ...], ...]  # lanes of the row; those of one part lie on each other
    middle: float
    height: float

    def bars(self) -> Iterator[tuple[tuple[str, ...], float, float]]:
        """The lanes of every part, and where their bars lie: middle and height."""
        each = self.height / len(self.parts)
        top = self.middle - self.height / 2
        for number, lanes in enumerate(self.parts):
            yield lanes, top + (number + 0.5) * each, each


def timeline_rows(info: TimelineInfo, spans: Iterable[Span]) -> list[Row]:
    """The lanes of every run, and behind them all others that worked: devices side by side, links
    on one line."""
    found: dict[str, set[str]] = {lane: {lane} for lane in info.lanes}
    computing = set()
    for span in spans:
        base = span.lane if span.lane in found else _NUMBERS.sub("", span.lane)
        found.setdefault(base, set()).add(span.lane)
        if span.kind == "expert":
            computing.add(base)
    rows, edge = [], -0.5
    for base, lanes in found.items():
        ordered = tuple(sorted(lanes, key=_order))
        apart = len(ordered) > 1 and base in computing
        size = UNITS_SIZE if apart else 1.0
        parts = tuple((lane,) for lane in ordered) if apart else (ordered,)
        name = NAMES.get(base, info.lane_name(base))
        height = size - 1.0 + HEIGHTS.get(base, HEIGHT)
        rows.append(
            Row(f"{name}\n{len(parts)} units" if apart else name, parts, edge + size / 2, height)
        )
        edge += size
    return rows


def _order(lane: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", lane)))
