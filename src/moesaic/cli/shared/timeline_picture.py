"""One step as bars on lanes: all of it above, a few of its layers with expert numbers below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from moesaic.cli.shared.in_time import in_time
from moesaic.cli.shared.pictures import FAINT, GRID, INK, new_figure, plain, save
from moesaic.cli.shared.timeline_info import TimelineInfo, timeline_info
from moesaic.cli.study.simulate_recording import RecordedStep, Recording
from moesaic.core.report import ENGINE, Span
from moesaic.core.units import NS_PER_MS, NS_PER_US
from moesaic.lab.simulate.result import Result

NAMES = {"gpu": "GPU", "cpu": "CPU", "pcie": "PCIe"}  # of lanes, where not their own
HEIGHTS = {"planner": 0.3, ENGINE: 0.3}  # of a lane's bars, where not the usual
HEIGHT = 0.72
COLOURS = {
    "dense": "#b8bfc9",
    "expert": "#3b7dc4",
    "transfer": "#d9662b",
    "prefetch": "#f2b872",
    "plan": "#7d5ba6",
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
    "dense": "attention, shared experts, head",
    "expert": "experts, by their numbers",
    "transfer": "transfer a layer waits for",
    "prefetch": "transfer in idle time",
    "plan": "deciding, the experts wait",
    "hand-over": "routing on its way to the planner",
    "start": "experts are handed to the lanes",
    "look-ahead": "choosing what to prefetch",
    "sum": "collecting and adding results",
    "launch": "the step is launched",
    "return": "logits reach the caller",
    "await-plan": "the GPU waits for the plan",
    "await-sum": "the GPU waits for the CPU's sum",
}
_OF_EVERY_RUN = ("dense", "expert", "transfer", "prefetch", "plan")
ZOOMED_LAYERS = 4
WIDTH_IN = 13.0
_LEGEND_COLUMNS = 6
DIGIT_SHARE = 0.005  # of the width of the picture that one digit takes


class TimeWindow(NamedTuple):
    start_ns: int
    end_ns: int

    def shows(self, span: Span) -> bool:
        return span.start_ns < self.end_ns and span.end_ns > self.start_ns


def draw_timeline(path: str, run: Result | TimelineInfo, recording: Recording) -> None:
    """A step that is like most."""
    info = timeline_info(run)
    step = recording.typical(info.latencies_s)
    spans = recording.spans_of(step)
    starts = layer_starts(spans, step.start_ns)
    whole = TimeWindow(step.start_ns, step.end_ns)
    zoom, layers = zoom_window(starts, whole, info.phase)
    figure = new_figure(WIDTH_IN, 6.8)
    above, below = figure.subplots(2, 1, gridspec_kw={"height_ratios": (1, 1.35)})
    _panel(above, info.lanes, spans, starts, whole, whole.start_ns, numbers=False)
    above.axvspan(*_scaled(zoom, whole), color="#fff3c4", zorder=0)
    above.set_title(step_label(step, info), loc="left", fontsize=9, color=FAINT)
    _panel(below, info.lanes, spans, starts, zoom, whole.start_ns, numbers=True)
    below.set_title(f"MoE layers {layers[0]} to {layers[-1]}", loc="left", fontsize=9, color=FAINT)
    _dress(figure, info, {span.kind for span in spans})
    save(figure, path)


def step_label(step: RecordedStep, info: TimelineInfo) -> str:
    unit = "step" if info.phase == "decode" else "prompt"
    own, mean = in_time(info.latencies_s[step.number]), in_time(info.mean_s)
    return f"{unit} {step.number}: {own} (mean {mean})"


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
    lanes: Sequence[str],
    spans: Sequence[Span],
    starts: dict[int, int],
    window: TimeWindow,
    origin: int,
    numbers: bool,
) -> None:
    scale, unit = _unit(window)
    for row, lane in enumerate(lanes):
        shown = [s for s in spans if s.lane == lane and window.shows(s)]
        height = HEIGHTS.get(lane, HEIGHT)
        for kind, colour in COLOURS.items():
            bars = [(s.start_ns - origin, s.end_ns - s.start_ns) for s in shown if s.kind == kind]
            extents = [(start / scale, length / scale) for start, length in bars]
            edge = _edge([length for _, length in bars], colour, window, numbers)
            axes.broken_barh(
                extents, (row - height / 2, height), facecolors=colour, zorder=2, **edge
            )
        if numbers:
            _label_bars(axes, shown, row, window, origin)
    _layer_lines(axes, starts, window, origin, numbers)
    axes.set_xlim(*((edge - origin) / scale for edge in window))
    axes.set_ylim(len(lanes) - 0.5, -0.75 if numbers else -0.55)
    axes.set_yticks(range(len(lanes)), [NAMES.get(lane, lane) for lane in lanes])
    axes.set_xlabel(f"time in {unit}", color=INK, fontsize=9)
    plain(axes)


def _edge(lengths: Sequence[int], colour: str, window: TimeWindow, numbers: bool) -> dict[str, Any]:
    """White between bars, but not around bars so short that white would be all one sees."""
    short = max(lengths, default=0) < 0.005 * (window.end_ns - window.start_ns)
    if short:
        return {"edgecolor": colour, "linewidth": 0.4}
    return {"edgecolor": "white", "linewidth": 0.6 if numbers else 0.25}


def _layer_lines(
    axes: Any, starts: dict[int, int], window: TimeWindow, origin: int, named: bool
) -> None:
    scale, _ = _unit(window)
    for layer, start in starts.items():
        if not window.start_ns <= start < window.end_ns:
            continue
        x = (start - origin) / scale
        axes.axvline(x, color=GRID, linewidth=0.8, zorder=1)
        if named:
            axes.text(x, -0.52, f" layer {layer}", fontsize=8, color=FAINT, va="bottom")


def _label_bars(axes: Any, bars: Sequence[Span], row: int, window: TimeWindow, origin: int) -> None:
    """The longest of a bar's names that fits inside it."""
    scale, _ = _unit(window)
    digit = DIGIT_SHARE * (window.end_ns - window.start_ns)
    for span in bars:
        start, end = max(span.start_ns, window.start_ns), min(span.end_ns, window.end_ns)
        for text in _names(span):
            if end - start > (len(text) + 0.4) * digit:
                middle = ((start + end) / 2 - origin) / scale
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


def _unit(window: TimeWindow) -> tuple[int, str]:
    return (NS_PER_MS, "ms") if window.end_ns - window.start_ns > NS_PER_MS else (NS_PER_US, "us")


def _scaled(zoom: TimeWindow, whole: TimeWindow) -> tuple[float, float]:
    scale, _ = _unit(whole)
    return (zoom.start_ns - whole.start_ns) / scale, (zoom.end_ns - whole.start_ns) / scale


def _dress(figure: Any, info: TimelineInfo, kinds: set[str]) -> None:
    """Title and legend, outside the panels."""
    from matplotlib.patches import Patch

    kind = info.kind[0].upper() + info.kind[1:]
    figure.suptitle(
        f"{kind}: {info.model} on {info.machine}, {info.phase}\n{info.setting}",
        fontsize=11, color=INK,
    )  # fmt: skip
    shown = [kind for kind in COLOURS if kind in _OF_EVERY_RUN or kind in kinds]
    handles = [Patch(color=COLOURS[kind], label=MEANINGS[kind]) for kind in shown]
    white = Patch(facecolor="white", edgecolor=GRID, label="the lane waits for another")
    rows = -(-(len(handles) + 1) // _LEGEND_COLUMNS)
    columns = -(-(len(handles) + 1) // rows)
    figure.legend(handles=[*handles, white], loc="outside lower center", ncols=columns,
                  frameon=False, fontsize=9)  # fmt: skip
