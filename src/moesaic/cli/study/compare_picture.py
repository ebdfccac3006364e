"""Latency per system and cache ratio as grouped bars, one panel per machine."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

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
from moesaic.cli.study.comparison import ComparisonCell

_PALETTE = (
    "#3b7dc4", "#d9662b", "#5b9e5b", "#8c6bb1", "#c9a227", "#4aa5a5", "#b0547a", "#7a7a7a",
    "#1f4e79", "#8a3d13",
)  # fmt: skip
_HATCHES = (None, "////", "....", "xxxx")  # one per round of the palette
_MAX_COLUMNS = 2
GROUP = 0.84  # share of a group's room that its bars take
MAX_NUMBERS = 18  # bars in a panel whose values still fit above them
MANY_BARS = 12  # more of them have values in small print
CUT_FROM = 5.0  # times the median: bars above are cut
CUT_AT = 1.25  # times the highest of the others
BAR_IN, MAX_IN = 0.16, 13.0  # room for "skipped" upright; the widest panel
FLOOR = "physical floor"
NOTHING = "+none"  # in the name of a combination: no prefetching
MS = 1e3


def draw_comparison(path: str, cells: Sequence[ComparisonCell]) -> None:
    machines = list(dict.fromkeys(cell.machine for cell in cells))
    labels = list(dict.fromkeys(cell.label for cell in cells))
    columns = min(_MAX_COLUMNS, len(machines))
    rows = -(-len(machines) // columns)
    bars = len(cells) // len(machines)
    width = max(7.0, columns * min(MAX_IN, max(5.6, BAR_IN * bars)))
    figure = new_figure(width, 1.0 + 3.2 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, machine in zip(panels, machines, strict=False):
        _panel(axes, [cell for cell in cells if cell.machine == machine], labels)
        axes.set_title(machine, loc="left", fontsize=10, color=INK)
    for axes in panels[len(machines) :]:
        axes.set_visible(False)
    result = next(cell.result for cell in cells if cell.result is not None)
    title_above(figure, _title(result))
    _legend(figure, labels)
    save(figure, path)


def _title(result: dict[str, Any]) -> str:
    kind = result["trace"]["origin"]
    what = "time to first token" if result["phase"] == "prefill" else "time per decode step"
    words = [result["model"], f"{result['expert_dtype']} experts"]
    if result["phase"] == "decode":
        words.append(f"batch {result['batch']}")
    return f"Simulated {what}: {', '.join(words)}, {kind} routing"


def _panel(axes: Any, cells: Sequence[ComparisonCell], labels: Sequence[str]) -> None:
    ratios = list(dict.fromkeys(cell.cache_ratio for cell in cells))
    width = GROUP / len(labels)
    highest = ceiling([cell.mean_s * MS for cell in cells if cell.mean_s is not None])
    for cell in cells:
        index = labels.index(cell.label)
        x = ratios.index(cell.cache_ratio) - GROUP / 2 + (index + 0.5) * width
        _bar(axes, cell, x, 0.92 * width, style(index), highest)
        _number(axes, cell, x, len(cells), highest)
    axes.set_xticks(range(len(ratios)), [f"{100 * ratio:.3g} %" for ratio in ratios])
    axes.set_xlabel("share of the experts in GPU memory", color=FAINT, fontsize=9)
    axes.set_xlim(-0.5, len(ratios) - 0.5)  # room for a group without a bar, too
    axes.set_ylim(0, highest * 1.12 or 1.0)
    axes.set_ylabel("milliseconds", color=FAINT, fontsize=9)
    axes.grid(axis="y", color=GRID, linewidth=0.6, zorder=0)
    plain(axes)


def style(index: int) -> dict[str, Any]:
    """Colour, and from the second round of the palette on a pattern too."""
    rounds, colour = divmod(index, len(_PALETTE))
    hatch = _HATCHES[rounds % len(_HATCHES)]
    return {"facecolor": _PALETTE[colour], "hatch": hatch, "edgecolor": "white", "linewidth": 0}


def ceiling(heights: Sequence[float]) -> float:
    """The height at which bars end. Those many times the usual height are cut there: drawn whole,
    they would leave the others a few pixels to differ in."""
    if not heights:
        return 0.0
    limit = CUT_FROM * median(heights)
    usual = max(height for height in heights if height <= limit)
    return usual if usual == max(heights) else CUT_AT * usual


def _bar(
    axes: Any, cell: ComparisonCell, x: float, width: float, drawn: dict[str, Any], highest: float
) -> None:
    """The mean as a bar, the physical floor as a line across it; a cut bar has a slanted gap."""
    if cell.result is None or cell.mean_s is None:
        return
    height = cell.mean_s * MS
    axes.bar(x, min(height, highest), width, zorder=2, **drawn)
    if height > highest:
        ends = [x - width / 2, x + width / 2]
        axes.plot(ends, [0.9 * highest, 0.93 * highest], color="white", linewidth=3, zorder=4)
    floor = cell.result["floor_s"] / cell.result["steps"] * MS
    axes.hlines(floor, x - width / 2, x + width / 2, color=INK, linewidth=1.2, zorder=3)


def _number(axes: Any, cell: ComparisonCell, x: float, bars: int, highest: float) -> None:
    """The value above its bar, where there is room for it; a missing bar says so."""
    text = {"ha": "center", "va": "bottom"}
    if cell.mean_s is None:
        axes.text(x, 0.01 * highest, "skipped", rotation=90, fontsize=7, color=FAINT, **text)
    elif bars <= MAX_NUMBERS or cell.mean_s * MS > highest:  # what a cut bar is, only this says
        height = cell.mean_s * MS
        digits = f"{height:.0f}" if height >= 100 else f"{height:#.3g}"
        size, above = 7.5 if bars <= MANY_BARS else 6.0, min(height, highest) + 0.01 * highest
        axes.text(x, above, digits, fontsize=size, color=INK, **text)


def short_label(label: str) -> str:
    """A combination's name without the policy that does nothing."""
    return label.replace(NOTHING, "")


def _legend(figure: Any, labels: Sequence[str]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Patch(label=short_label(label), **style(index)) for index, label in enumerate(labels)
    ]
    handles.append(Line2D([], [], color=INK, linewidth=1.2, label=FLOOR))
    legend_below(figure, handles)
