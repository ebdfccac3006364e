"""Draws of people or things with a number each, told in any order."""

from __future__ import annotations

from random import Random

from training.problems.chance import several
from training.problems.draws import NamedDraw, limits, maker
from training.problems.names import PEOPLE
from training.problems.text import Fields
from training.problems.words import PAIRS, SINGLES

_SINGULAR = {slot: tuple(one for _, one in pairs) for slot, pairs in PAIRS.items()}
_POOLS = {**_SINGULAR, **SINGLES, "people": tuple(person.name for person in PEOPLE)}


@maker("measured")
def measured(pool: str, count: str, size: str, by: str = "1") -> NamedDraw:
    """p1 has the number n1, p2 has n2...: who is at the top, at the bottom, in the middle."""
    options, many, multiple = _POOLS[pool], int(count), int(by)
    low, high = limits(size)
    sizes = tuple(range(low, high + 1, multiple))
    names = [f"p{n}" for n in range(1, many + 1)]
    numbers = [f"n{n}" for n in range(1, many + 1)]

    def draw(rng: Random) -> Fields:
        who, much = several(rng, options, many), several(rng, sizes, many)
        ranked = sorted(zip(much, who, strict=True))
        least, most = ranked[0], ranked[-1]
        fields = {
            "top": most[1],
            "top_n": str(most[0]),
            "bottom": least[1],
            "bottom_n": str(least[0]),
            "middle": ranked[many // 2][1],
            "rising": ", ".join(name for _, name in ranked),
            "falling": ", ".join(name for _, name in reversed(ranked)),
            "rising_n": ", ".join(str(number) for number, _ in ranked),
            "falling_n": ", ".join(str(number) for number, _ in reversed(ranked)),
            "gap": str(most[0] - least[0]),
            "gap_step": f"{most[0]} - {least[0]} = {most[0] - least[0]}",
        }
        fields.update(zip(names, who, strict=True))
        fields.update(zip(numbers, map(str, much), strict=True))
        return fields

    given = "top top_n bottom bottom_n middle rising falling rising_n falling_n gap gap_step"
    return NamedDraw(draw, (*given.split(), *names, *numbers), tuple(numbers))
