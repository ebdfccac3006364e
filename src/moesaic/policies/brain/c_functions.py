"""The brain as C functions, for a native thread that must not wait for the interpreter.

Each takes the address of a brain's buffer (`Brain.state.words`) and returns a number. The thread
fills in what `fields.py` says the body fills, calls, and reads the plan from the buffer. Nothing
here needs the interpreter lock. One thread at a time per brain.

A thread that can forecast sets BODY_FORECASTS before `begin_look_ahead`. Where that finds time for
moves, the thread fills in forecasts of the next LOOKAHEAD layers, nearest first, at most ENTRIES
numbers each: FORECAST_SHAPES, _STEPS, _IDS and _SCORES as `state.py` lays them out, their count in
FORECASTS. None of another layer: nothing checks that here."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from numba import carray, types

from moesaic.core.native_brain import NativeBrain
from moesaic.policies.brain import fields as at
from moesaic.policies.brain.brain import Brain
from moesaic.policies.brain.decide import decide
from moesaic.policies.brain.learn import learn
from moesaic.policies.brain.lookahead import begin, finish, look_ahead
from moesaic.policies.brain.read_ahead import choose_read_ahead
from moesaic.policies.compiled import c_function, compiled
from moesaic.policies.timelines import Ints

_SIGNATURE = types.int64(types.CPointer(types.int64))


class Addresses(NamedTuple):
    """`int64_t f(int64_t *buffer)` each."""

    decide: int  # returns the length of the plan in words
    look_ahead: int  # with the forecasts filled in, or without any; returns how many moves
    begin_look_ahead: int  # returns how many moves there is time for, -1: nothing may move
    finish_look_ahead: int  # after filling in forecasts; returns how many moves
    learn: int  # from the report in the buffer; returns 0
    choose_read_ahead: int  # returns how many experts stand in AHEAD_IDS, 0: nothing is read


@compiled
def _buffer(pointer: Any) -> Ints:
    """The array behind an address: how long it is stands in it."""
    words: Ints = carray(pointer, carray(pointer, at.WORDS + 1)[at.WORDS])
    return words


def _decide(pointer: Any) -> int:
    return decide(_buffer(pointer))


def _look_ahead(pointer: Any) -> int:
    return look_ahead(_buffer(pointer))


def _begin_look_ahead(pointer: Any) -> int:
    return begin(_buffer(pointer))


def _finish_look_ahead(pointer: Any) -> int:
    return finish(_buffer(pointer))


def _learn(pointer: Any) -> int:
    return learn(_buffer(pointer))


def _choose_read_ahead(pointer: Any) -> int:
    return choose_read_ahead(_buffer(pointer))


def native_brain(brain: Brain, tokens: int, ranks: int) -> NativeBrain:
    """A brain for a native conductor whose steps have at most so many tokens. It belongs to the
    conductor from here on: its buffer must not move."""
    brain.reserve(tokens, ranks)
    words, entry = brain.state.words, addresses()
    numbers = {name.lower(): value for name, value in vars(at).items() if name.isupper()}
    return NativeBrain(
        words.ctypes.data, int(words[at.LAYERS]), numbers, entry.decide, entry.look_ahead,
        entry.begin_look_ahead, entry.finish_look_ahead, entry.learn,
        entry.choose_read_ahead, brain.forecasts_used, brain,
    )  # fmt: skip


@cache
def addresses() -> Addresses:
    """Compiled on first use, and kept on disk like everything compiled."""
    stages = (
        _decide, _look_ahead, _begin_look_ahead, _finish_look_ahead, _learn, _choose_read_ahead
    )  # fmt: skip
    return Addresses(*(c_function(_SIGNATURE, stage).address for stage in stages))
