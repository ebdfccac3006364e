"""What a task asks of a model, piece by piece. Knows nothing of how it is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Verdict(NamedTuple):
    right: bool
    why: str = ""  # not, where there is something to say


@dataclass(frozen=True, slots=True)
class Question:
    """Tokens to go on with, greedily, and who judges the text that comes."""

    task: str
    item: str  # unique within the task
    prompt: Sequence[int]
    max_tokens: int
    judge: Callable[[str], Verdict]
    expected: str | None = None
    stop: tuple[str, ...] = ()
    group: str = ""  # a part of the task with a score of its own
    kind: str = ""  # a finer part


@dataclass(frozen=True, slots=True)
class Window:
    """A piece of text to read: the last tokens, as many as there are targets, are followed by
    these."""

    task: str
    item: str
    reads: Sequence[int]
    targets: Sequence[int]
    bytes: float  # of the text that the targets stand for
    words: float


@dataclass(frozen=True, slots=True)
class Unusable:
    """What was to be asked and cannot be."""

    task: str
    item: str
    why: str
    group: str = ""


Item = Question | Window | Unusable


def length_needed(items: Sequence[Item]) -> int:
    """Of the longest sequence."""
    return max((_length(item) for item in items), default=1)


def fitting(items: Sequence[Item], length: int, advice: str) -> list[Item]:
    """What does not fit into sequences of `length` tokens cannot be asked."""
    return [item if _least(item) <= length else _too_long(item, length, advice) for item in items]


def _length(item: Item) -> int:
    if isinstance(item, Question):
        return len(item.prompt) + item.max_tokens
    return len(item.reads) if isinstance(item, Window) else 1


def _least(item: Item) -> int:
    """An answer may be cut, what is read may not."""
    return len(item.prompt) + 1 if isinstance(item, Question) else _length(item)


def _too_long(item: Item, length: int, advice: str) -> Unusable:
    group = "" if isinstance(item, Window) else item.group
    why = f"it has {_least(item) - 1} tokens and a sequence may have {length}: {advice}"
    return Unusable(item.task, item.item, why, group)
