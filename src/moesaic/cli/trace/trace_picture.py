"""Traces side by side as curves: load, reuse by distance and by layer, cache hits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moesaic.cli.shared.pictures import FAINT, GRID, INK, new_figure, plain, save
from moesaic.cli.trace.trace_columns import Column
from moesaic.cli.trace.trace_hits import CACHES, CAPACITIES
from moesaic.workloads.stats.summary import LAGS

_COLOURS = ("#3b7dc4", "#d9662b", "#5b9e5b", "#8c6bb1", "#c9a227", "#4aa5a5", "#b0547a", "#7a7a7a")
_STYLES = dict(zip(CACHES, ("-", "--", ":"), strict=True))
_FULL = 100


def draw_traces(path: str, found: Sequence[Column]) -> None:
    lines = -(-len(found) // 2)
    figure = new_figure(9.6, 6.6 + 0.22 * lines)
    panels = figure.subplots(2, 2).ravel()
    for axes, draw in zip(panels, (_load, _distance, _depth, _hits), strict=True):
        draw(axes, found)
        axes.grid(axis="y", color=GRID, linewidth=0.6, zorder=0)
        axes.set_ylim(bottom=0)
        plain(axes)
    handles = panels[0].get_legend_handles_labels()[0]
    figure.legend(handles=handles, ncols=2, fontsize=9, loc="outside lower center", frameon=False)
    save(figure, path)


def _curves(found: Sequence[Column]) -> list[tuple[Column, dict[str, Any]]]:
    looks = [_COLOURS[place % len(_COLOURS)] for place in range(len(found))]
    return [
        (column, {"color": colour, "linewidth": 1.6, "label": column.label})
        for column, colour in zip(found, looks, strict=True)
    ]


def _name(axes: Any, title: str, across: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.set_xlabel(across, color=FAINT, fontsize=9)


def _load(axes: Any, found: Sequence[Column]) -> None:
    for column, look in _curves(found):
        experts = column.profile.experts
        across = [_FULL * n / experts for n in range(experts + 1)]
        axes.plot(across, column.profile.load_curve, **look)
    axes.plot([0, _FULL], [0, 1], color=FAINT, linewidth=0.8)
    _name(axes, "Traffic of the busiest experts", "% of a layer's experts; grey: all alike")


def _distance(axes: Any, found: Sequence[Column]) -> None:
    for column, look in _curves(found):
        numbers = column.profile.statistics
        axes.plot(LAGS, [numbers[f"overlap_{lag}"] for lag in LAGS], marker="o", ms=3, **look)
        axes.axhline(numbers["overlap_global"], color=look["color"], linewidth=0.8, linestyle=":")
    axes.set_xscale("log", base=2)
    axes.set_xticks(LAGS, [str(lag) for lag in LAGS])
    _name(axes, "Experts shared with an earlier token", "tokens before; dotted: unrelated tokens")


def _depth(axes: Any, found: Sequence[Column]) -> None:
    for column, look in _curves(found):
        values = column.profile.overlap_by_layer
        depth = [_FULL * (n + 0.5) / len(values) for n in range(len(values))]
        axes.plot(depth, values, **look)
    _name(axes, "Shared with the previous token, by layer", "% of the model's depth")


def _hits(axes: Any, found: Sequence[Column]) -> None:
    for column, look in _curves(found):
        for cache in CACHES:
            rates = [column.hits[f"{cache}_{capacity:g}"] for capacity in CAPACITIES]
            axes.plot(CAPACITIES, rates, **{**look, "linestyle": _STYLES[cache]})
    axes.set_xticks(CAPACITIES, [f"{capacity:g}" for capacity in CAPACITIES])
    _name(axes, "Cache hits: LRU solid, MRS dashed, Belady dotted", "% of a layer's experts cached")
