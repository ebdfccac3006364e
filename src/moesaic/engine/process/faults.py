"""An error as a message, and the message as an error again.

An error of `moesaic.core.errors` keeps its class, its text and its plain attributes; of any other
class, such as `RuntimeError`, the caller gets an `EngineFailed` that names it."""

from __future__ import annotations

from typing import Any

import msgspec

from moesaic.core import errors
from moesaic.core.errors import EngineFailed, MoesaicError

_PLAIN = (str, int, float, bool, type(None))


class Fault(msgspec.Struct, frozen=True, array_like=True):
    kind: str  # the name of a class
    text: str
    fields: dict[str, Any] = {}  # attributes that are plain values


def fault_of(error: BaseException) -> Fault:
    kind = next((each for each in type(error).__mro__ if _class_named(each.__name__) is each), None)
    text = str(error)
    if kind in (None, MoesaicError):
        name = type(error).__name__
        return Fault(EngineFailed.__name__, f"{name}: {text}" if text else name)
    assert kind is not None, "it is a class of core.errors"
    fields = {
        name: value if isinstance(value, _PLAIN) else str(value)
        for name, value in vars(error).items()
        if not isinstance(value, tuple)  # the rows of a step, which the caller does not know
    }
    return Fault(kind.__name__, text, fields)


def error_of(fault: Fault) -> MoesaicError:
    kind = _class_named(fault.kind) or EngineFailed
    error = kind.__new__(kind)
    Exception.__init__(error, fault.text)
    if issubclass(kind, errors.FailedRows):
        vars(error)["rows"] = ()
    vars(error).update(fault.fields)
    return error


def _class_named(name: str) -> type[MoesaicError] | None:
    found = getattr(errors, name, None)
    is_error = isinstance(found, type) and issubclass(found, MoesaicError)
    return found if is_error else None
