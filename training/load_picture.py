"""Every expert's share of the tokens, layer by layer, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from moesaic.cli.shared.pictures import INK, new_figure, save


def draw_loads(shares: Sequence[Sequence[float]], top_k: int, path: Path) -> None:
    """Experts of a layer stand from the busiest to the idlest: their numbers mean nothing."""
    ordered = [sorted((100 * share for share in layer), reverse=True) for layer in shares]
    figure = new_figure(9, 3.4)
    axes = figure.add_subplot()
    picture = axes.imshow(ordered, cmap="viridis", vmin=0, aspect="auto")
    axes.set_xlabel("experts of a layer, from the busiest to the idlest", color=INK)
    axes.set_ylabel("layer", color=INK)
    axes.set_yticks(range(len(ordered)))
    even = 100 * top_k / len(ordered[0])
    axes.set_title(
        f"Share of the tokens that an expert computes (even: {even:.1f} %)", color=INK, loc="left"
    )
    for layer, values in enumerate(ordered):
        for place in (0, len(values) - 1):
            dark = values[place] < 0.6 * max(max(row) for row in ordered)
            axes.text(
                place,
                layer,
                f"{values[place]:.0f}",
                ha="center",
                va="center",
                fontsize=7,
                color="white" if dark else INK,
            )
    figure.colorbar(picture, ax=axes, label="% of tokens")
    save(figure, str(path))
