"""Draws of lists of numbers."""

from __future__ import annotations

from random import Random

from training.problems.chance import between, several
from training.problems.draws import NamedDraw, limits, maker
from training.problems.text import Fields
from training.problems.walks import added

_RANGE = tuple(range(2, 100))


@maker("numbers")
def numbers(length: str) -> NamedDraw:
    """All different: the largest, the smallest, in order, and how many pass a limit."""
    low, high = limits(length)

    def draw(rng: Random) -> Fields | None:
        found = several(rng, _RANGE, between(rng, low, high))
        limit = between(rng, 2, 18) * 5
        over = [number for number in found if number > limit]
        even = [number for number in found if number % 2 == 0]
        if not over or not even or limit in found:
            return None
        return {
            "items": _joined(found),
            "largest": str(max(found)),
            "smallest": str(min(found)),
            "rising": _joined(sorted(found)),
            "falling": _joined(sorted(found, reverse=True)),
            "limit": str(limit),
            "over": _joined(over),
            "over_count": str(len(over)),
            "parity": " ".join(f"{n}: {'odd' if n % 2 else 'even'}." for n in found),
            "even": _joined(even),
            "even_count": str(len(even)),
            "above": " ".join(f"{n}: {'yes' if n > limit else 'no'}." for n in found),
        }

    gives = (
        "items largest smallest rising falling limit over over_count parity even even_count above"
    )
    return NamedDraw(draw, tuple(gives.split()), ("items",))


@maker("sum")
def running_sum(length: str, size: str) -> NamedDraw:
    low, high = limits(length)
    least, most = limits(size)

    def draw(rng: Random) -> Fields:
        found = [between(rng, least, most) for _ in range(between(rng, low, high))]
        steps, total = added(found)
        return {"items": _joined(found), "added": steps, "total": str(total)}

    return NamedDraw(draw, ("items", "added", "total"), ("items",))


@maker("sequence")
def sequence() -> NamedDraw:
    """Equal steps upward, and the next number."""

    def draw(rng: Random) -> Fields:
        start, step = between(rng, 1, 60), between(rng, 2, 12)
        found = [start + step * n for n in range(between(rng, 3, 5))]
        last = found[-1]
        return {
            "items": _joined(found),
            "step": f"{found[1]} - {start} = {step}",
            "next": str(last + step),
            "onward": f"{last} + {step} = {last + step}",
        }

    return NamedDraw(draw, ("items", "step", "next", "onward"), ("items",))


def _joined(found: list[int]) -> str:
    return ", ".join(map(str, found))
