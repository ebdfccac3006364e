"""What stands where in a list: the fields that questions about order ask for."""

from __future__ import annotations

from random import Random

from training.problems.chance import between
from training.problems.text import Fields

ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
_GIVES = "first last word nth number mid before after counted up_to total backward without line"
GIVES = tuple(_GIVES.split())


def counted(words: list[str]) -> str:
    return ", ".join(f"{number} {word}" for number, word in enumerate(words, 1))


def places(rng: Random, words: list[str]) -> Fields:
    """A word at some place, a word with two neighbors, and the ends."""
    place, middle = between(rng, 0, len(words) - 1), between(rng, 1, len(words) - 2)
    return {
        "first": words[0],
        "last": words[-1],
        "word": words[place],
        "nth": ORDINALS[place],
        "number": str(place + 1),
        "mid": words[middle],
        "before": words[middle - 1],
        "after": words[middle + 1],
        "counted": counted(words),
        "up_to": counted(words[: place + 1]),
        "total": str(len(words)),
        "backward": ", ".join(reversed(words)),
        "without": ", ".join(word for word in words if word != words[place]),
        "line": ", ".join(words[:-1]) + " and " + words[-1],
    }
