"""Traces side by side as curves: load, reuse by distance and by layer, cache hits."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan, nan
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
from moesaic.cli.trace.trace_columns import Column
from moesaic.cli.trace.trace_hits import CACHES, CAPACITIES
from moesaic.workloads.stats.summary import LAGS

_COLOURS = ("#3b7dc4", "#d9662b", "#5b9e5b", "#8c6bb1", "#c9a227", "#4aa5a5", "#b0547a", "#7a7a7a")
_STYLES = dict(zip(CACHES, ("-", "--", ":"), strict=True))
_FULL = 100


def draw_traces(path: str, found: Sequence[Column]) -> None:
    figure = new_figure(9.6, 7.0)
    panels = figure.subplots(2, 2).ravel()
    for axes, draw in zip(panels, (_load, _distance, _depth, _hits), strict=True):
        draw(axes, found)
        axes.grid(axis="y", color=GRID, linewidth=0.6, zorder=0)
        axes.set_ylim(bottom=0)
        plain(axes)
    title_above(figure, "Routing of traces side by side: load, reuse and cache hits")
    legend_below(figure, panels[0].get_legend_handles_labels()[0])
    save(figure, path)


def _curves(found: Sequence[Column]) -> list[tuple[Column, dict[str, Any]]]:
    looks = [_COLOURS[place % len(_COLOURS)] for place in range(len(found))]
    return [
        (column, {"color": colour, "linewidth": 1.6, "label": column.label})
        for column, colour in zip(found, looks, strict=True)
    ]


def _name(axes: Any, title: str, across: str, up: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.set_xlabel(across, color=FAINT, fontsize=9)
    axes.set_ylabel(up, color=FAINT, fontsize=9)


def _load(axes: Any, found: Sequence[Column]) -> None:
    for column, look in _curves(found):
        experts = column.profile.experts
        across = [_FULL * n / experts for n in range(experts + 1)]
        axes.plot(across, [_FULL * share for share in column.profile.load_curve], **look)
    axes.plot([0, _FULL], [0, _FULL], color=FAINT, linewidth=0.8)
    across_name = "busiest experts, % of a layer's (grey: equal load)"
    _name(axes, "Traffic of the busiest experts", across_name, "% of the layer's traffic")


def _distance(axes: Any, found: Sequence[Column]) -> None:
    """A distance that no document of a trace is long enough for is a gap, named below."""
    across, unknown = "distance in tokens (dotted: unrelated tokens)", {}
    for column, look in _curves(found):
        numbers = column.profile.statistics
        shares = [numbers.get(f"overlap_{lag}", nan) for lag in LAGS]
        axes.plot(LAGS, [_FULL * share for share in shares], marker="o", ms=3, **look)
        unrelated = _FULL * numbers["overlap_global"]
        axes.axhline(unrelated, color=look["color"], linewidth=0.8, linestyle=":")
        missing = ", ".join(
            str(lag) for lag, share in zip(LAGS, shares, strict=True) if isnan(share)
        )
        if missing:
            unknown[column.label] = missing
    for label, missing in unknown.items():
        across += f"\nunknown at {missing}, documents are shorter: {label}"
    axes.set_xscale("log", base=2)
    axes.set_xticks(LAGS, [str(lag) for lag in LAGS])
    _name(axes, "Experts shared with an earlier token", across, "% of a token's experts")


def _depth(axes: Any, found: Sequence[Column]) -> None:
    for column, look in _curves(found):
        values = column.profile.overlap_by_layer
        depth = [_FULL * (n + 0.5) / len(values) for n in range(len(values))]
        axes.plot(depth, [_FULL * value for value in values], **look)
    title = "Shared with the previous token, by layer"
    _name(axes, title, "depth of the layer, % of the model's", "% of a token's experts")


def _hits(axes: Any, found: Sequence[Column]) -> None:
    for column, look in _curves(found):
        for cache in CACHES:
            rates = [column.hits[f"{cache}_{capacity:g}"] for capacity in CAPACITIES]
            axes.plot(
                CAPACITIES,
                [_FULL * rate for rate in rates],
                **{**look, "linestyle": _STYLES[cache]},
            )
    axes.set_xticks(CAPACITIES, [f"{capacity:g}" for capacity in CAPACITIES])
    title = "Cache hits: LRU solid, MRS dashed, Belady dotted"
    _name(axes, title, "cache size, % of a layer's experts", "hit rate in %")
