"""Pictures of runs. Knows matplotlib and nothing of simulation; loaded only when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from moesaic.core.errors import MissingExtra
from moesaic.core.files import whole_file

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
except ImportError as error:  # matplotlib is an extra
    raise MissingExtra("a picture", "plot") from error

INK, FAINT, GRID = "#222222", "#666666", "#d0d0d0"
FITS = 0.97  # share of a figure's width that titles and legends may take
_SHORTEST_LINE = 20  # letters of a title that is wrapped


def new_figure(width: float, height: float) -> Any:
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06)  # inches: labels keep off the edges
    return Figure(figsize=(width, height), facecolor="white", layout=layout)


def save(figure: Any, path: str) -> None:
    """Whole or not at all; the format is the name's ending."""
    with whole_file(path) as stream:
        figure.savefig(stream, format=Path(path).suffix[1:].lower(), dpi=150)


def plain(axes: Any) -> None:
    """Keep only the axes that carry a scale."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.tick_params(which="both", colors=INK, length=0)


def title_above(figure: Any, text: str, size: float = 11) -> None:
    """A title above all panels, on as many lines as the figure's width needs."""
    shown = figure.suptitle(text, fontsize=size, color=INK)
    fit_text(figure, shown)


def fit_text(figure: Any, shown: Any) -> None:
    """Wrap a text between words until the figure is wide enough for it."""
    renderer, lines = FigureCanvasAgg(figure).get_renderer(), shown.get_text().split("\n")
    room = FITS * figure.bbox.width
    for letters in range(max(map(len, lines)), _SHORTEST_LINE, -2):
        wrapped = (fill(line, letters, break_long_words=False) for line in lines)
        shown.set_text("\n".join(wrapped))
        if shown.get_window_extent(renderer).width <= room:
            return


def legend_below(
    figure: Any, handles: Sequence[Any], size: float = 9, title: str | None = None
) -> None:
    """A legend below all panels, in as many columns as fit the figure's width. The figure grows
    by the legend's height, and where a single name is too long also in width."""
    renderer, count = FigureCanvasAgg(figure).get_renderer(), len(handles)
    looks = {"loc": "outside lower center", "frameon": False, "fontsize": size, "title": title}
    for columns in sorted({-(-count // rows) for rows in range(1, count + 1)}, reverse=True):
        legend = figure.legend(handles=handles, ncols=columns, **looks)
        legend.get_title().set(fontsize=size - 1, color=FAINT)
        extent = legend.get_window_extent(renderer)
        if columns == 1 or extent.width <= FITS * figure.bbox.width:
            break
        legend.remove()
    width, height = figure.get_size_inches()
    figure.set_size_inches(
        max(width, extent.width / FITS / figure.dpi), height + extent.height / figure.dpi
    )
