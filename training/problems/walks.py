"""What a solution says on its way through a list: each next word follows from the one before it.

A very small model cannot look at a whole list at once; it can say of every word whether it fits.
"""

from __future__ import annotations

from collections.abc import Sequence


def until_gone(words: Sequence[str], gone: str) -> str:
    """Is each one in the other list? Until one is not."""
    return _until(words, gone, "yes", "no")


def until_found(words: Sequence[str], found: str) -> str:
    """Is each one in the other list? Until one is."""
    return _until(words, found, "no", "yes")


def _until(words: Sequence[str], end: str, others: str, at_end: str) -> str:
    passed = [f"{word}: {others}." for word in words[: words.index(end)]]
    return " ".join([*passed, f"{end}: {at_end}."])


def tallied(words: Sequence[str], word: str) -> str:
    """How often the word was there so far, said with every one."""
    return ", ".join(f"{each} {words[: n + 1].count(word)}" for n, each in enumerate(words))


def added(numbers: Sequence[int]) -> tuple[str, int]:
    """The steps of adding one after the other, and the sum."""
    total, steps = numbers[0], []
    for number in numbers[1:]:
        steps.append(f"{total} + {number} = {total + number}.")
        total += number
    return " ".join(steps), total
