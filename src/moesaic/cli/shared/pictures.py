"""Pictures of runs. Knows matplotlib and nothing of simulation; loaded only when asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from moesaic.core.errors import MissingExtra
from moesaic.core.files import whole_file

try:
    from matplotlib.figure import Figure
except ImportError as error:  # matplotlib is an extra
    raise MissingExtra("a picture", "plot") from error

INK, FAINT, GRID = "#222222", "#777777", "#d0d0d0"


def new_figure(width: float, height: float) -> Any:
    return Figure(figsize=(width, height), facecolor="white", layout="constrained")


def save(figure: Any, path: str) -> None:
    """Whole or not at all; the format is the name's ending."""
    with whole_file(path) as stream:
        figure.savefig(stream, format=Path(path).suffix[1:].lower(), dpi=150)


def plain(axes: Any) -> None:
    """Only the axes that carry a scale."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.tick_params(colors=INK, length=0)
