"""Pictures of `reproduce mobile`: accuracy against speed, and the confidence measures compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from moesaic.lab.gating.rules import Rule, full_rule
from moesaic.policies.gate import FULL, MEASURES
from moesaic.reproductions.mobile.quality_rows import HALF, TOP_K, curve
from moesaic.reproductions.mobile.speed_rows import CPU, EMULATED, GATES, SLOW_LINK

if TYPE_CHECKING:
    from moesaic.reproductions.mobile.table import Found

_COLOURS = ("#3b7dc4", "#c4573b", "#4a9d5b")
_NAMES = {CPU: "CPU only", EMULATED: "emulated accelerator", SLOW_LINK: "emulated, slow link"}
_RULES = {
    "full": full_rule(TOP_K),
    "gamma=0": Rule(HALF, 0.0),
    "gamma=0.7": Rule(HALF, 0.7),
    "gamma=0.99": Rule(HALF, 0.99),
}


def draw_all(folder: str, found: Found) -> list[str]:
    """What can be drawn of what was measured; the files' names."""
    drawn = []
    if found.quality and found.speeds:
        drawn.append(str(Path(folder) / "mobile-accuracy-speed.svg"))
        _accuracy_against_speed(drawn[-1], found)
    if found.quality:
        drawn.append(str(Path(folder) / "mobile-confidence.svg"))
        _measures(drawn[-1], found)
    return drawn


def _accuracy_against_speed(path: str, found: Found) -> None:
    """One line per machine, one point per threshold, with the interval of its accuracy."""
    figure = new_figure(7.5, 4.2)
    axes = figure.subplots()
    for colour, (machine, speeds) in zip(_COLOURS, found.speeds.items(), strict=True):
        full = speeds[FULL].tokens_per_s
        points = []
        for name, gate in GATES.items():
            tally, speed = found.quality[_RULES[name]], speeds[gate].tokens_per_s / full
            low, high = tally.interval
            points.append((speed, 100 * tally.accuracy))
            axes.vlines(speed, 100 * low, 100 * high, color=colour, linewidth=0.8, alpha=0.5)
            axes.annotate(
                name, points[-1], xytext=(4, 4), textcoords="offset points", fontsize=7, color=INK
            )
        axes.plot(*zip(*points, strict=True), "o-", color=colour, label=_NAMES[machine])
    axes.set_xlabel("measured speed, times that with all experts (gamma: threshold)", color=FAINT)
    axes.margins(x=0.1)  # room for the names of the rightmost points
    title = "moesaic-20m with 2 of 4 experts: accuracy against speed, with 95 % intervals"
    _finish(figure, axes, path, title)


def _measures(path: str, found: Found) -> None:
    figure = new_figure(7.5, 4.2)
    axes = figure.subplots()
    for colour, measure in zip(_COLOURS, MEASURES, strict=True):
        points = [(100 * ratio, 100 * share) for ratio, share in curve(found.quality, measure)]
        axes.plot(*zip(*points, strict=True), "o-", color=colour, label=measure)
    full = found.quality[full_rule(TOP_K)].accuracy
    dashed = {"color": FAINT, "linewidth": 0.8, "linestyle": "--"}
    axes.axhline(100 * full, label="all experts for every token", **dashed)
    axes.set_xlabel("tokens that fall back to all experts, in %", color=FAINT)
    _finish(figure, axes, path, "moesaic-20m with 2 of 4 experts: accuracy by confidence measure")


def _finish(figure: Any, axes: Any, path: str, title: str) -> None:
    axes.set_ylabel("right answers in %", color=FAINT)
    axes.grid(color=GRID, linewidth=0.6, zorder=0)
    plain(axes)
    title_above(figure, title, size=10)
    legend_below(figure, axes.get_legend_handles_labels()[0], size=8)
    save(figure, path)
