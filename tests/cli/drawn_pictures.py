"""Figures as they are saved, and what a reader must find in each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest


@contextmanager
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The figures that are saved meanwhile, instead of their files."""
    from matplotlib.figure import Figure

    from moesaic.cli.shared import pictures

    figures: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(pictures, "whole_file", lambda path: nullcontext())
        patch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
        yield figures


def check_readable(figure: Any) -> None:
    """Every text and legend lies inside the picture; every axis with a scale says its unit."""
    figure.set_dpi(150)  # as it is saved
    figure.draw_without_rendering()
    edge, slack = figure.bbox, 1.0
    for artist in (*_texts(figure), *figure.legends):
        box = artist.get_window_extent()
        inside = box.x0 >= edge.x0 - slack and box.x1 <= edge.x1 + slack
        inside &= box.y0 >= edge.y0 - slack and box.y1 <= edge.y1 + slack
        assert inside, f"{artist} reaches over the edge"
    for legend in figure.legends:
        assert not any("+none" in text.get_text() for text in legend.get_texts())
    for axes in figure.axes:
        if axes.get_visible() and axes.xaxis.get_label().get_visible():
            assert _labelled(axes), f"{axes.get_title(loc='left')}: an axis without a label"


def _texts(figure: Any) -> list[Any]:
    """What is drawn: not the numbers of ticks beyond the limits of their axis."""
    from matplotlib.text import Text

    beyond = {text for axes in figure.axes for text in _not_drawn(axes)}
    shown = [text for text in figure.findobj(Text) if text.get_text().strip()]
    return [text for text in shown if text.get_visible() and text not in beyond]


def _not_drawn(axes: Any) -> list[Any]:
    from matplotlib.text import Text

    if not axes.get_visible():
        return list(axes.findobj(Text))
    found = []
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            if not low <= tick.get_loc() <= high:
                found += [tick.label1, tick.label2]
    return found


def _labelled(axes: Any) -> bool:
    """Axes of names (systems, lanes) need no label; those of numbers do."""
    labels = []
    for axis in (axes.xaxis, axes.yaxis):
        ticks = [text.get_text() for text in axis.get_ticklabels() if text.get_text()]
        numbers = bool(ticks) and all(_is_number(text) for text in ticks)
        labels.append(bool(axis.get_label().get_text()) or not numbers)
    return all(labels)


def _is_number(text: str) -> bool:
    return text.replace("\u2212", "").replace(".", "", 1).replace("%", "").strip().isdecimal()
