"""Draws that are written as code: what a template in a text file asks for by name.

"draw: people 3 5..90" calls the maker registered as `people` with the words behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from random import Random
from typing import NamedTuple

from training.problems.text import Fields

Draw = Callable[[Random], Fields | None]  # None: these values make no problem, draw again
_MODULES = (  # where makers stand
    "lists",
    "scene_lists",
    "number_lists",
    "amounts",
    "dates",
    "clock",
    "comparisons",
    "rankings",
    "facts",
    "stories",
)


class NamedDraw(NamedTuple):
    draw: Draw
    gives: tuple[str, ...]  # every field it sets
    key: tuple[str, ...]  # those that make it this problem and not another


Maker = Callable[..., NamedDraw]  # takes the words behind the name
_MAKERS: dict[str, Maker] = {}


def maker(name: str) -> Callable[[Maker], Maker]:
    def register(make: Maker) -> Maker:
        assert name not in _MAKERS, name
        _MAKERS[name] = make
        return make

    return register


def simple(name: str, gives: str, key: str) -> Callable[[Draw], Draw]:
    """Registers a draw that takes no arguments; fields are separated by spaces."""

    def register(draw: Draw) -> Draw:
        maker(name)(lambda: NamedDraw(draw, tuple(gives.split()), tuple(key.split())))
        return draw

    return register


def named_draw(call: str) -> NamedDraw:
    for module in _MODULES:
        import_module(f"training.problems.{module}")
    name, *arguments = call.split()
    return _MAKERS[name](*arguments)


def limits(text: str) -> tuple[int, int]:
    """5..90"""
    low, high = text.split("..")
    return int(low), int(high)
