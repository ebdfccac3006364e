"""The brain's stages as C functions, `int64_t f(State *state)` each: what a native thread calls,
and the handle in Python too, by the same address."""

from __future__ import annotations

from functools import cache

from moesaic.policies.brain.decide import decide
from moesaic.policies.brain.forecasts import choose_read_ahead
from moesaic.policies.brain.learn import learn
from moesaic.policies.brain.lookahead import begin, finish, look_ahead
from moesaic.policies.rule_calls import stage

DECIDE, LEARN, CHOOSE_READ_AHEAD = "decide", "learn", "choose_read_ahead"
LOOK_AHEAD, BEGIN_LOOK_AHEAD, FINISH_LOOK_AHEAD = (
    "look_ahead", "begin_look_ahead", "finish_look_ahead"
)  # fmt: skip
_STAGES = {
    DECIDE: decide,  # returns the length of the plan in words
    LOOK_AHEAD: look_ahead,  # with the forecasts filled in, or without any; returns how many moves
    BEGIN_LOOK_AHEAD: begin,  # returns how many moves there is time for, -1: nothing may move
    FINISH_LOOK_AHEAD: finish,  # after filling in forecasts; returns how many moves
    LEARN: learn,  # from the report; returns 0
    CHOOSE_READ_AHEAD: choose_read_ahead,  # returns how many experts may be read, 0: none
}


@cache
def address(name: str) -> int:
    """Compiled on first use, and kept on disk like everything compiled."""
    return stage(_STAGES[name])
