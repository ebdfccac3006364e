"""Scores as bars with their intervals, one row each: a task or split, then its kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moesaic.cli.shared.pictures import FAINT, GRID, INK, new_figure, plain, save, title_above

_WHOLE, _PART = "#3b7dc4", "#a9c7e8"
_ROW_IN, _WIDTH_IN = 0.32, 7.5


def draw_scores(path: str, described: Mapping[str, Any]) -> None:
    drawn = [score for score in described["scores"] if score["share"] is not None]
    read = [text for text in described["texts"] if text["token_perplexity"] is not None]
    if read and not drawn:
        return _draw_texts(path, described, read)
    figure = new_figure(_WIDTH_IN, 1.5 + _ROW_IN * max(len(drawn), 1))
    axes = figure.subplots()
    for position, score in enumerate(drawn):
        _bar(axes, position, score)
    axes.set_yticks(range(len(drawn)), [_name(score) for score in drawn])
    axes.set_ylim(max(len(drawn), 1) - 0.4, -0.6)  # the first on top
    axes.set_xlim(0, 101)
    axes.set_xlabel("right answers in % (black line: 95 % interval)", color=FAINT)
    axes.grid(axis="x", color=GRID, linewidth=0.6, zorder=0)
    plain(axes)
    if not drawn:
        axes.text(50, 0, "no answers were judged", ha="center", va="center", color=FAINT)
    title_above(figure, _title(described), size=10)
    save(figure, path)


def _draw_texts(
    path: str, described: Mapping[str, Any], texts: Sequence[Mapping[str, Any]]
) -> None:
    """Draw scores of texts: bits per byte, which can be compared with models of other tokens."""
    figure = new_figure(_WIDTH_IN, 1.5 + _ROW_IN * len(texts))
    axes = figure.subplots()
    axes.barh(range(len(texts)), [text["bits_per_byte"] for text in texts], 0.7, color=_WHOLE)
    axes.set_yticks(range(len(texts)), [f"{text['tokens']} tokens" for text in texts])
    axes.set_xlabel("bits per byte of text", color=FAINT)
    plain(axes)
    title_above(figure, _title(described), size=10)
    save(figure, path)


def _bar(axes: Any, position: int, score: Mapping[str, Any]) -> None:
    share, low, high = (100 * score[name] for name in ("share", "low", "high"))
    colour = _PART if score["kind"] else _WHOLE
    axes.barh(position, share, 0.7, color=colour, zorder=2)
    axes.hlines(position, low, high, color=INK, linewidth=1.2, zorder=3)
    axes.plot((low, high), (position, position), "|", color=INK, markersize=6, zorder=3)


def _name(score: Mapping[str, Any]) -> str:
    name = score["kind"] or str(score["group"] or score["task"]).replace("_", " ")
    return f"{name}, {score['right']} of {score['asked']}"


def _title(described: Mapping[str, Any]) -> str:
    texts: Sequence[Mapping[str, Any]] = described["texts"]
    judged = any(score["share"] is not None for score in described["scores"])
    lines = [f"{described['model']}: right answers" if judged else str(described["model"])]
    for text in texts:
        if text["token_perplexity"] is not None:
            lines.append(
                f"perplexity {text['token_perplexity']:.4g} per token, "
                f"{text['bits_per_byte']:.4g} bits per byte, of {text['tokens']} tokens"
            )
    return "\n".join(lines)
