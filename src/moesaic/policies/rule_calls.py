"""How compiled code calls the rule of a policy: by its address, which stands in a record.

So a rule is an ordinary compiled function in its policy's file, wherever that is, and code that
calls rules is compiled without them. Every kind of rule has one signature:

- a cache's (`observe`): `rule(layer, experts, ranked, scores, values, memory, numbers)`; a layer
  was routed. `experts` are [tokens, used ranks], `ranked` and `scores` [tokens, ranks]; a negative
  expert is no expert.
- a schedule's (`decide_kinds`): `rule(kind, ready, gpu, cpu, lanes, n, spare)` decides `kind` for
  every expert (timelines.py) and returns the believed finish time; `spare` is scratch.
- a prefetch policy's (`propose`): `rule(state)` writes pairs (number of a forecast, expert) into
  `state.ahead.picks`, best first and `state.ahead.max_background` at most, and returns how many."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.extending import intrinsic

from moesaic.compiling.record_types import RecordType
from moesaic.policies.compiled import c_function
from moesaic.policies.records import State

Rule = Callable[..., Any]

_I1, _I2 = types.int64[::1], types.int64[:, ::1]
_F1, _F2, _F3 = types.float64[::1], types.float64[:, ::1], types.float64[:, :, ::1]
_OBSERVE = types.void(types.int64, _I2, _I2, _F2, _F2, _F3, _F1)
_DECIDE_KINDS = types.int64(_I1, _I1, _I1, _I1, _I1, types.int64, _I1)
_STAGE = types.int64(RecordType(State))


@cache
def _address(signature: Any, function: Callable[..., Any]) -> int:
    address: int = c_function(signature, function).address
    return address


def cache_rule(rule: Rule) -> int:
    """The address of a cache's rule; compiled on first use, and kept on disk."""
    return _address(_OBSERVE, rule.py_func)  # type: ignore[attr-defined]


def schedule_rule(rule: Rule) -> int:
    return _address(_DECIDE_KINDS, rule.py_func)  # type: ignore[attr-defined]


def prefetch_rule(rule: Rule) -> int:
    return stage(rule)


def stage(function: Rule) -> int:
    """The address of a compiled function of the whole state."""
    return _address(_STAGE, function.py_func)  # type: ignore[attr-defined]


def _called(rule: Any) -> Any:
    """How a call of such a rule is typed, and made: its address comes first."""

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = [context.get_value_type(kind) for kind in rule.args]
        function = ir.FunctionType(context.get_value_type(rule.return_type), kinds)
        pointer = builder.inttoptr(arguments[0], function.as_pointer())
        return builder.call(pointer, arguments[1:])

    return rule.return_type(types.int64, *rule.args), make


@intrinsic
def _observe(
    typing: Any, rule: Any, layer: Any, experts: Any, ranked: Any, scores: Any, values: Any,
    memory: Any, numbers: Any,
) -> Any:  # fmt: skip
    return _called(_OBSERVE)


@intrinsic
def _decide_kinds(
    typing: Any, rule: Any, kind: Any, ready: Any, gpu: Any, cpu: Any, lanes: Any, n: Any,
    spare: Any,
) -> Any:  # fmt: skip
    return _called(_DECIDE_KINDS)


@intrinsic
def _call_stage(typing: Any, function: Any, state: Any) -> Any:
    return _called(_STAGE)


@intrinsic
def _state_at(typing: Any, address: Any) -> Any:
    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return RecordType(State)(types.int64), make


# As compiled code calls them: without what numba passes by itself.
observe: Callable[..., None] = _observe
decide_kinds: Callable[..., int] = _decide_kinds
propose: Callable[[int, State], int] = _call_stage
call_stage: Callable[[int, State], int] = _call_stage
state_at: Callable[[int], State] = _state_at  # numba takes numbers from Python faster than objects
