"""What precisions of experts cost, as JSON has it and as a person reads it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from moesaic.cli.shared.output import print_table
from moesaic.core.units import GB

if TYPE_CHECKING:
    from moesaic.engine.preparation import Prepared
    from moesaic.lab.evaluation.results import ItemResult
    from moesaic.lab.quality.expert_quality import ExpertQuality

_COLUMNS = ("experts", "others", "GB", "load s", "mean KL", "p99 KL", "same top-1", "perplexity")


def describe(
    reference: Prepared, found: Sequence[ExpertQuality], text: str | None, window: int
) -> dict[str, Any]:
    """`text` is the file that was read, None for the packaged sample; `window` is how many tokens
    of it were seen at once."""
    return {
        "model": reference.spec.name,
        "text": text,
        "tokens": found[0].quality.tokens,
        "window": window,
        "dtype": reference.plan.dtype,
        "reference": found[0].expert_dtype,
        "rows": [_row(each) for each in found],
    }


def print_quality(described: dict[str, Any]) -> None:
    source = described["text"] or "the packaged sample"
    title = f"{described['model']}: {described['tokens']} tokens of {source}, compared with "
    rows = [
        (
            row["expert_dtype"],
            row["dense_dtype"],
            row["expert_bytes"] / GB,
            row["load_s"],
            _or_infinite(row["mean_kl"]),
            _or_infinite(row["p99_kl"]),
            f"{row['same_top1']:.1%}",
            _or_infinite(row["perplexity"]),
        )
        for row in described["rows"]
    ]
    print_table(f"{title}{described['reference']} experts", _COLUMNS, rows)
    if described["rows"][0]["exact_match"]:
        _print_exact_match(described)


def _print_exact_match(described: dict[str, Any]) -> None:
    splits = [score["group"] for score in described["rows"][0]["exact_match"]]
    asked = described["rows"][0]["exact_match"][0]["asked"]
    columns = ["experts", "others", *(name for split in splits for name in (split, "95 %"))]
    rows = []
    for row in described["rows"]:
        cells = [row["expert_dtype"], row["dense_dtype"]]
        for score in row["exact_match"]:
            low, high = 100 * score["low"], score["high"]
            cells += [f"{score['share']:.1%}", f"{low:.1f}-{high:.1%}"]
        rows.append(cells)
    print_table(f"exact match on {asked} problems of each split", columns, rows)


def _row(each: ExpertQuality) -> dict[str, Any]:
    measured = each.quality
    return {
        "expert_dtype": each.expert_dtype,
        "dense_dtype": each.dense_dtype,
        "expert_bytes": each.expert_bytes,
        "load_s": each.load_s,
        "mean_kl": _or_null(measured.mean_kl),
        "p99_kl": _or_null(measured.p99_kl),
        "same_top1": measured.same_top1,
        "perplexity": _or_null(measured.other_perplexity),
        "exact_match": _exact_match(each.answers),
    }


def _exact_match(answers: Sequence[ItemResult]) -> list[dict[str, Any]]:
    """Of each split of the problems; nothing where none were asked."""
    from moesaic.lab.evaluation.scores import Score, scores

    found = [score for score in scores(answers) if isinstance(score, Score) and not score.kind]
    names = ("group", "right", "asked", "share", "low", "high")
    rows = [{name: getattr(score, name) for name in names} for score in found]
    return sorted(rows, key=lambda score: str(score["group"]))


def _or_null(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value
