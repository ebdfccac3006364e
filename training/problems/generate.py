"""Problems of a split, in a sequence fixed by the split, the seed and the kinds.

A template's held-out numbers are those whose hash says so: one eighth of all combinations. The
hash covers the template and its numbers (or whatever else decides the answer), not the wording, so
no rewording or other name brings one of them into the training data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from random import Random

from moesaic.core.errors import ImpossibleSetting, UnknownName
from training.problems.catalog import KINDS, templates
from training.problems.template import Problem, Template

SPLITS = ("train", "held_out_numbers", "held_out_templates")
ONE_IN = 8
_TRIES = 10_000


def is_held_out(template: str, values: tuple[str, ...]) -> bool:
    """Do these values belong to held_out_numbers? Decided by nothing but the arguments."""
    text = "\n".join((template, *values)).encode()
    return blake2b(text, digest_size=1).digest()[0] % ONE_IN == 0


def generate(
    split: str, seed: int, count: int, kinds: Iterable[str] | None = None
) -> Iterator[Problem]:
    """`count` problems; the same arguments give the same ones everywhere."""
    if split not in SPLITS:
        raise UnknownName("split", split, SPLITS)
    if count < 0:
        raise ImpossibleSetting(f"{count} problems were asked for; ask for 0 or more.")
    pool = _pool(split, KINDS if kinds is None else tuple(kinds))
    return _sequence(pool, _membership(split), Random(f"{split} {seed}"), count)


def _pool(split: str, kinds: tuple[str, ...]) -> tuple[Template, ...]:
    for kind in kinds:
        if kind not in KINDS:
            raise UnknownName("kind of problem", kind, KINDS)
    if not kinds:
        raise ImpossibleSetting(f"no kind of problem was named; there are {', '.join(KINDS)}.")
    held_out = split == "held_out_templates"
    return tuple(t for t in templates() if t.kind in kinds and t.held_out == held_out)


def _membership(split: str) -> Callable[[str, tuple[str, ...]], bool]:
    if split == "held_out_templates":
        return lambda template, values: True
    if split == "held_out_numbers":
        return is_held_out
    return lambda template, values: not is_held_out(template, values)


def _sequence(
    pool: tuple[Template, ...],
    wanted: Callable[[str, tuple[str, ...]], bool],
    rng: Random,
    count: int,
) -> Iterator[Problem]:
    for _ in range(count):
        template = pool[int(rng.random() * len(pool))]
        for _ in range(_TRIES):
            problem = template.attempt(rng, wanted)
            if problem is not None:
                yield problem
                break
        else:
            raise AssertionError(f"template {template.id} finds no values")
