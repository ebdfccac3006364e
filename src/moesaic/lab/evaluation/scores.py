"""What results add up to: shares with their intervals, and perplexities."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moesaic.lab.evaluation.results import ItemResult

_Z = 1.959964  # 95 % of a normal distribution lie within so many standard deviations


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a task, of a group of it, or of a kind in a group."""

    task: str
    group: str
    kind: str  # empty: all kinds together
    right: int
    asked: int
    cut: int  # answers that reached their token limit
    left_out: int  # could not be asked
    share: float | None  # None: nothing was asked
    low: float | None  # 95 % interval
    high: float | None
    tokens_per_s: float | None  # generated; of whole groups only


@dataclass(frozen=True, slots=True)
class TextScore:
    """The score of a text. Tokens are predicted; figures per byte and word do not depend on
    them."""

    task: str
    windows: int
    left_out: int
    tokens: int
    token_perplexity: float | None
    byte_perplexity: float | None
    word_perplexity: float | None
    bits_per_byte: float | None
    tokens_per_s: float | None


def wilson(right: int, asked: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson, 1927), also of few items, and of none or all right."""
    share, spread = right / asked, _Z * _Z / asked
    middle = (share + spread / 2) / (1 + spread)
    width = _Z / (1 + spread) * math.sqrt(share * (1 - share) / asked + spread / asked / 4)
    return max(0.0, middle - width), min(1.0, middle + width)


def scores(results: Iterable[ItemResult]) -> list[Score | TextScore]:
    """One per group of each task, then those of its kinds, where there are several."""
    tasks: dict[str, dict[str, list[ItemResult]]] = {}
    for result in results:
        tasks.setdefault(result.task, {}).setdefault(result.group, []).append(result)
    found: list[Score | TextScore] = []
    for groups in tasks.values():
        for several in groups.values():
            found += _group(several)
    return found


def _group(results: Sequence[ItemResult]) -> list[Score | TextScore]:
    if any(result.loss is not None for result in results):
        return [_reading(results)]
    kinds: dict[str, list[ItemResult]] = {}
    for result in results:
        if not result.left_out:
            kinds.setdefault(result.kind, []).append(result)
    whole = _score("", results)
    return [whole, *(_score(kind, kinds[kind]) for kind in sorted(kinds) if len(kinds) > 1)]


def _score(kind: str, results: Sequence[ItemResult]) -> Score:
    asked = [result for result in results if not result.left_out]
    right = sum(result.right is True for result in asked)
    low, high = wilson(right, len(asked)) if asked else (None, None)
    return Score(
        task=results[0].task,
        group=results[0].group,
        kind=kind,
        right=right,
        asked=len(asked),
        cut=sum(result.cut for result in asked),
        left_out=len(results) - len(asked),
        share=right / len(asked) if asked else None,
        low=low,
        high=high,
        tokens_per_s=None if kind else _rate(asked),
    )


def _reading(results: Sequence[ItemResult]) -> TextScore:
    read = [result for result in results if result.loss is not None]
    loss = math.fsum(result.loss or 0.0 for result in read)
    tokens = sum(result.tokens for result in read)
    size, words = (math.fsum(getattr(each, name) for each in read) for name in ("bytes", "words"))
    return TextScore(
        task=results[0].task,
        windows=len(read),
        left_out=len(results) - len(read),
        tokens=tokens,
        token_perplexity=_perplexity(loss, tokens),
        byte_perplexity=_perplexity(loss, size),
        word_perplexity=_perplexity(loss, words),
        bits_per_byte=loss / math.log(2) / size if size else None,
        tokens_per_s=_rate(read),
    )


def _rate(results: Sequence[ItemResult]) -> float | None:
    seconds = math.fsum(result.seconds for result in results)
    return sum(result.tokens for result in results) / seconds if seconds else None


def _perplexity(loss: float, count: float) -> float | None:
    """None where it is beyond all numbers, or of nothing."""
    try:
        return math.exp(loss / count) if count else None
    except OverflowError:
        return None
