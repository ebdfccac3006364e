"""Lists of numbers in everyday settings: temperatures of a week, prices, points.

The settings are blocks in data/scenes/amounts.txt: how the numbers are told, and how the largest,
the smallest, those beyond a limit and (where it means something) the sum are asked for.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from random import Random
from typing import NamedTuple

from training.problems.chance import between, pick, several
from training.problems.draws import NamedDraw, limits, maker
from training.problems.grammar import capital, enumerate_words
from training.problems.reader import blocks
from training.problems.text import Fields
from training.problems.walks import added


class Amount(NamedTuple):
    sizes: tuple[int, ...]
    nouns: str
    title: str
    told: tuple[str, ...]
    asked: dict[str, str]  # largest, smallest, over, under, sum


_QUESTIONS = ("largest", "smallest", "over", "under", "sum")
_TOLD = ("told", "tells", "clause", "items", "nouns")


@cache
def settings() -> tuple[Amount, ...]:
    file = files("training.problems") / "data" / "scenes" / "amounts.txt"
    return tuple(_amount(lines) for _, lines in blocks(file.read_text(encoding="ascii")))


def _amount(lines: list[tuple[str, str]]) -> Amount:
    once = dict(lines)
    low, high = limits(once["size"])
    told = tuple(text for word, text in lines if word == "told")
    asked = {word: once[word] for word in _QUESTIONS if word in once}
    return Amount(tuple(range(low, high + 1)), once["nouns"], capital(once["title"]), told, asked)


def _tell(rng: Random, about: Amount, numbers: list[str]) -> Fields:
    clause = pick(rng, about.told).format(enumerate_words(numbers))
    style = int(rng.random() * 5)
    said = f"{about.title}: {', '.join(numbers)}." if style < 2 else f"{capital(clause)}."
    lines = "\n".join(f"- {number}" for number in numbers)
    return {
        "told": f"{about.title}:\n{lines}\n" if style == 0 else f"{said} ",
        "tells": said,
        "clause": clause,
        "items": ", ".join(numbers),
        "nouns": about.nouns,
    }


@cache
def _asked(number: int, limit: str) -> Fields:
    """Every question of a setting, as a sentence of its own and behind another one."""
    fields = {}
    for word, asked in settings()[number].asked.items():
        question = asked.format(limit)
        fields[f"{word}_q"] = question
        fields[f"{word}_low"] = question[0].lower() + question[1:]
    return fields


def _sides(found: list[int], limit: int) -> dict[str, list[int]]:
    return {
        "over": [n for n in found if n > limit],
        "under": [n for n in found if n < limit],
        "even": [n for n in found if n % 2 == 0],
        "odd": [n for n in found if n % 2],
    }


@maker("amounts")
def amounts(length: str) -> NamedDraw:
    """All different: ends, order, even and odd ones, and those on each side of a limit."""
    low, high = limits(length)
    abouts = settings()

    def draw(rng: Random) -> Fields | None:
        number = between(rng, 0, len(abouts) - 1)
        about = abouts[number]
        found = several(rng, about.sizes, between(rng, low, high))
        limit = between(rng, about.sizes[0] // 5 + 1, about.sizes[-1] // 5) * 5
        sides = _sides(found, limit)
        if not all(sides.values()) or limit in found:
            return None
        order, told = sorted(found), [str(n) for n in found]
        return {
            **_tell(rng, about, told),
            **_asked(number, str(limit)),
            **{side: _joined(some) for side, some in sides.items()},
            **{f"{side}_count": str(len(some)) for side, some in sides.items()},
            "limit": str(limit),
            "above": " ".join(f"{n}: {'yes' if n > limit else 'no'}." for n in found),
            "below": " ".join(f"{n}: {'yes' if n < limit else 'no'}." for n in found),
            "parity": " ".join(f"{n}: {'odd' if n % 2 else 'even'}." for n in found),
            "rising": _joined(order),
            "falling": _joined(order[::-1]),
            "largest": str(order[-1]),
            "smallest": str(order[0]),
            "second_largest": str(order[-2]),
            "second_smallest": str(order[1]),
            "first": told[0],
            "last": told[-1],
        }

    gives = (
        "limit above below over over_count under under_count parity even even_count odd odd_count "
        "rising falling largest smallest second_largest second_smallest first last"
    )
    asked = [f"{word}_{form}" for word in _QUESTIONS for form in ("q", "low")]
    return NamedDraw(draw, (*_TOLD, *gives.split(), *asked), ("items",))


@maker("amount-sums")
def amount_sums(length: str, size: str) -> NamedDraw:
    """Added one after the other."""
    low, high = limits(length)
    least, most = limits(size)
    abouts = settings()
    with_sum = [number for number, about in enumerate(abouts) if "sum" in about.asked]

    def draw(rng: Random) -> Fields:
        setting = pick(rng, with_sum)
        found = [between(rng, least, most) for _ in range(between(rng, low, high))]
        steps, total = added(found)
        fields = _tell(rng, abouts[setting], [str(n) for n in found])
        return fields | _asked(setting, "") | {"added": steps, "total": str(total)}

    return NamedDraw(draw, (*_TOLD, "sum_q", "sum_low", "added", "total"), ("items",))


def _joined(found: list[int]) -> str:
    return ", ".join(map(str, found))
