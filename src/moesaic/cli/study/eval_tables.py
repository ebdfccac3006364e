"""An evaluation's result, as JSON has it and as a person reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from moesaic.cli.shared.output import print_table
from moesaic.lab.evaluation.results import ItemResult
from moesaic.lab.evaluation.scores import Score, TextScore, scores

_MISTAKES = 5  # shown of every group
_SCORES = ("task", "kind", "right", "asked", "score", "95 %", "tokens/s", "left out")
_TEXTS = ("tokens", "per token", "per word", "per byte", "bits per byte", "tokens/s")


def describe(
    model: str, results: Sequence[ItemResult], settings: Mapping[str, Any], command: str
) -> dict[str, Any]:
    found = scores(results)
    return {
        "model": model,
        "scores": [asdict(score) for score in found if isinstance(score, Score)],
        "texts": [asdict(score) for score in found if isinstance(score, TextScore)],
        "left_out": [
            {"task": each.task, "item": each.item, "why": each.why}
            for each in results
            if each.left_out
        ],
        "mistakes": _mistakes(results),
        "settings": dict(settings),
        "command": command,
    }


def print_evaluation(described: Mapping[str, Any]) -> None:
    model = described["model"]
    if described["scores"]:
        rows = [_score(score) for score in described["scores"]]
        shown = len(_SCORES) if any(row[-1] for row in rows) else -1  # left out are rarely any
        print_table(f"{model}: answers", _SCORES[:shown], [row[:shown] for row in rows])
    if described["texts"]:
        rows = [_text(text) for text in described["texts"]]
        print_table(f"{model}: perplexity", _TEXTS, rows)


def _score(score: Mapping[str, Any]) -> tuple[object, ...]:
    interval = None
    if score["share"] is not None:
        interval = f"{score['low'] * 100:.1f}-{score['high']:.1%}"
    rate = score["tokens_per_s"]
    return (
        score["group"] or score["task"],
        score["kind"] or "all",
        score["right"],
        score["asked"],
        None if score["share"] is None else f"{score['share']:.1%}",
        interval,
        None if rate is None else f"{rate:.0f}",
        score["left_out"],
    )


def _text(text: Mapping[str, Any]) -> tuple[object, ...]:
    names = ("token_perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte")
    rate = text["tokens_per_s"]
    return (
        text["tokens"],
        *(text[name] for name in names),
        None if rate is None else f"{rate:.0f}",
    )


def _mistakes(results: Sequence[ItemResult]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    counts: dict[tuple[str, str], int] = {}
    for each in results:
        group = each.task, each.group
        if each.right is False and counts.get(group, 0) < _MISTAKES:
            counts[group] = counts.get(group, 0) + 1
            shown = ("task", "item", "kind", "answer", "expected", "why")
            found.append({name: getattr(each, name) for name in shown})
    return found
