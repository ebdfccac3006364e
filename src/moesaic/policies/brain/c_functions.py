"""The brain as C functions, for a native thread that must not wait for the interpreter.

Each takes the address of a brain's state (`Brain.state.address`, a `State` of
native/conductor/brain_records.h) and returns a number. The thread fills in what records.py says the
body fills in, calls, and reads the plan from `state.decision`. Nothing here needs the interpreter
lock. One thread at a time per brain.

A thread that can forecast sets `forecasts.from_body` before `begin_look_ahead`. Where that finds
time for moves, the thread fills in the rest of the `forecasts`: of the next `setup.lookahead`
layers, nearest first. None of another layer: nothing checks that here."""

from __future__ import annotations

from moesaic.core.native_brain import NativeBrain
from moesaic.policies.brain.brain import Brain
from moesaic.policies.brain.stages import (
    BEGIN_LOOK_AHEAD,
    CHOOSE_READ_AHEAD,
    DECIDE,
    FINISH_LOOK_AHEAD,
    LEARN,
    LOOK_AHEAD,
    address,
)


def native_brain(brain: Brain, tokens: int, ranks: int) -> NativeBrain:
    """A brain for a native conductor whose steps have at most so many tokens. It belongs to the
    conductor from here on: its state must not move."""
    brain.reserve(tokens, ranks)
    return NativeBrain(
        state=brain.state.address,
        layers=brain.state.setup.layers,
        decide=address(DECIDE),
        look_ahead=address(LOOK_AHEAD),
        begin_look_ahead=address(BEGIN_LOOK_AHEAD),
        finish_look_ahead=address(FINISH_LOOK_AHEAD),
        learn=address(LEARN),
        choose_read_ahead=address(CHOOSE_READ_AHEAD),
        lookahead=brain.forecasts_used,
        kept=brain,
    )
