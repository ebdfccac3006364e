"""What happens in a story, as numbers: which happenings follow each other, and what they come to.

Knows no words. A happening is one change of an amount ("gain 7"); those with packs take two steps,
because the packs are counted first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random
from typing import NamedTuple

from training.problems.arithmetic import Step, write
from training.problems.chance import between, pick

_STEPS = {"packs_in": 2, "packs_out": 2}  # the others take one
_RARE = {"double", "triple", "half", "packs_in", "packs_out"}  # one of these in a story
_MOST = 400  # an amount above this stays out of everyday stories

Plan = tuple[str, ...]  # kinds of happenings, the start first


class Happening(NamedTuple):
    kind: str
    n: int
    m: int  # what is in one pack; 0 where there are no packs
    steps: tuple[Step, ...]


def plans(kinds: Iterable[str], steps: int) -> tuple[Plan, ...]:
    """Every course of a story with so many steps that these kinds of happenings allow."""
    known = tuple(kinds)
    starts = [kind for kind in ("start", "packs") if kind in known]
    changes = [kind for kind in known if kind not in ("start", "packs", "share")]
    found: list[Plan] = []
    for start in starts:
        left = steps - (start == "packs")
        found += [(start, *rest) for rest in _courses(changes, left) if rest]
        if "share" in known:
            found += [(start, *rest, "share") for rest in _courses(changes, left - 1)]
    return tuple(found)


def _courses(changes: list[str], steps: int) -> Iterator[Plan]:
    if steps == 0:
        yield ()
    for kind in changes:
        took = _STEPS.get(kind, 1)
        if took <= steps:
            for rest in _courses(changes, steps - took):
                if kind not in _RARE or not _RARE.intersection(rest):
                    yield (kind, *rest)


def happenings(rng: Random, plan: Plan, low: int, high: int) -> list[Happening] | None:
    """The plan with numbers, or None where they do not fit each other."""
    now = between(rng, low, high)
    found = [Happening("start", now, 0, ())]
    for number, kind in enumerate(plan):
        if kind == "start":
            continue
        happening = _packed(rng) if number == 0 else _changed(rng, kind, now)
        if happening is None or not 1 < happening.steps[-1].result <= _MOST:
            return None
        now = happening.steps[-1].result
        found.append(happening)
    return found[1:] if plan[0] == "packs" else found


def _packed(rng: Random) -> Happening | None:
    n, m = between(rng, 2, 9), between(rng, 3, 20)
    return _of("packs", n, m, write(m, "*", n))


def _changed(rng: Random, kind: str, now: int) -> Happening | None:
    if kind == "gain":
        n = between(rng, 2, 50)
        return _of(kind, n, 0, write(now, "+", n))
    if kind == "loss":
        n = between(rng, 2, max(2, min(now - 2, 50)))
        return _of(kind, n, 0, write(now, "-", n))
    if kind in ("double", "triple"):
        times = 2 if kind == "double" else 3
        return _of(kind, times, 0, write(now, "*", times) if now <= 120 else None)
    if kind == "half":
        return _of(kind, 2, 0, write(now, "/", 2))
    if kind == "share":
        fitting = [n for n in range(2, 10) if now % n == 0 and now > n]
        n = pick(rng, fitting) if fitting else 2
        return _of(kind, n, 0, write(now, "/", n))
    n, m = between(rng, 2, 6), between(rng, 2, 12)
    packs = write(m, "*", n)
    assert packs is not None, (n, m)
    return _of(kind, n, m, packs, write(now, "+" if kind == "packs_in" else "-", packs.result))


def _of(kind: str, n: int, m: int, *steps: Step | None) -> Happening | None:
    done = tuple(step for step in steps if step is not None)
    return Happening(kind, n, m, done) if len(done) == len(steps) else None
