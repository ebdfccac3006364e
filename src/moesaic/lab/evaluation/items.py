"""What a task asks of a model, piece by piece. Knows nothing of how it is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple


class Verdict(NamedTuple):
    right: bool
    why: str = ""  # not, where there is something to say


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt to complete greedily, and the function that judges the completion."""

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
class TextWindow:
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


Item = Question | TextWindow | Unusable


def digest_of_items(items: Sequence[Item]) -> str:
    """Changes with everything that is asked: its file, its template, its generator."""
    found = sha256()
    for item in items:
        found.update(repr((item.task, item.item, _content(item))).encode(errors="replace"))
    return found.hexdigest()[:16]


def _content(item: Item) -> tuple[object, ...]:
    if isinstance(item, Question):
        return (*item.prompt, item.expected, item.stop)
    return (*item.reads, *item.targets) if isinstance(item, TextWindow) else ()


def length_needed(items: Sequence[Item]) -> int:
    """The length of the longest sequence."""
    return max((_length(item) for item in items), default=1)


def fitting(items: Sequence[Item], length: int, advice: Mapping[str, str]) -> list[Item]:
    """What does not fit into sequences of `length` tokens cannot be asked; `advice` is per task."""
    return [item if _least(item) <= length else _too_long(item, length, advice) for item in items]


def answer_tokens_left(questions: Sequence[Question], length: int) -> int:
    """Tokens that are left to the answer of the longest."""
    return length - max(len(question.prompt) for question in questions)


def _length(item: Item) -> int:
    if isinstance(item, Question):
        return len(item.prompt) + item.max_tokens
    return len(item.reads) if isinstance(item, TextWindow) else 1


def _least(item: Item) -> int:
    """An answer may be cut, what is read may not."""
    return len(item.prompt) + 1 if isinstance(item, Question) else _length(item)


def _too_long(item: Item, length: int, advice: Mapping[str, str]) -> Unusable:
    group = "" if isinstance(item, TextWindow) else item.group
    why = f"{item.item} has {_least(item) - 1} tokens and a sequence may have {length}"
    why += f": {advice[item.task]}"
    return Unusable(item.task, item.item, why, group)
