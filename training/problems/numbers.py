"""The numbers of a word problem and its arithmetic, compiled from text.

Numbers are a comma-separated list: "a 5..60" draws, "b 2..<a" stays below a number drawn before,
"p 10..90 by 5" draws multiples, "t = a * b" computes (such a number may be told, or only be there
to make a later division come out). In a solution, [c = a + b] computes c and is written as
"12 + 7 = 19". Numbers that would leave grade school (negative, fractional, above 999) are drawn
again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from training.problems.arithmetic import compute, write
from training.problems.draws import Draw
from training.problems.text import Fields

Values = dict[str, int]
Instruction = Callable[[Random, Values], bool]  # False: draw again
_STEP = re.compile(r"\[(\w+) = (\w+) ([-+*/]) (\w+)\]")
_COMPUTED = re.compile(r"(\w+) = (\w+) ([-+*/]) (\w+)")
_RANGE = re.compile(r"(\w+) (\w+)\.\.(<?)(\w+)(?: by (\d+))?")


class Step(NamedTuple):
    name: str
    left: str
    op: str
    right: str


def steps_of(solution: str) -> list[Step]:
    return [Step(*found) for found in _STEP.findall(solution)]


def with_written_steps(solution: str) -> str:
    """[c = a + b] becomes {=c}, the field in which the written step will stand."""
    return _STEP.sub(r"{=\1}", solution)


def gives(spec: str, steps: list[Step]) -> tuple[str, ...]:
    named = [part.split()[0] for part in spec.split(",")]
    return tuple(dict.fromkeys([*named, *(s.name for s in steps), *(f"={s.name}" for s in steps)]))


def key(spec: str) -> tuple[str, ...]:
    return tuple(part.split()[0] for part in spec.split(",") if "=" not in part)


def drawer(spec: str, steps: list[Step]) -> Draw:
    instructions = tuple(_instruction(part.strip()) for part in spec.split(","))

    def draw(rng: Random) -> Fields | None:
        values: Values = {}
        for instruct in instructions:
            if not instruct(rng, values):
                return None
        fields: Fields = {}
        for name, left, op, right in steps:
            written = write(_value(left, values), op, _value(right, values))
            if written is None:
                return None
            values[name] = written.result
            fields["=" + name] = written.text
        for name, number in values.items():
            fields[name] = str(number)
        return fields

    return draw


def _value(term: str, values: Values) -> int:
    known = values.get(term)
    return int(term) if known is None else known


def _instruction(part: str) -> Instruction:
    if computed := _COMPUTED.fullmatch(part):
        name, left, op, right = computed.groups()

        def calculate(_: Random, values: Values) -> bool:
            result = compute(_value(left, values), op, _value(right, values))
            if result is None or result == 1:
                return False  # what is told is never 1, so that nouns stay plural
            values[name] = result
            return True

        return calculate
    ranged = _RANGE.fullmatch(part)
    assert ranged, f"not a number to draw: {part!r}"
    name, low, below, high, by = ranged.groups()
    multiple, less = int(by or 1), int(bool(below))

    def choose(rng: Random, values: Values) -> bool:
        first = -(-_value(low, values) // multiple)
        last = (_value(high, values) - less) // multiple
        if first <= last:
            values[name] = (first + int(rng.random() * (last - first + 1))) * multiple
        return first <= last

    return choose
