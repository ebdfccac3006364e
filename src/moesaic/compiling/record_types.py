"""Records as arguments of compiled functions: a pointer, whose members compiled code reads and
writes by name. Importing this teaches numba about them.

Compiled code is kept under the types of its arguments. That of a record holds a hash of its layout,
so that code for another layout is not found."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.extending import (
    NativeValue,
    infer_getattr,
    lower_getattr_generic,
    lower_setattr_generic,
    register_model,
    typeof_impl,
    unbox,
)
from numba.core.typing.templates import AttributeTemplate
from numba.np.arrayobj import make_array, populate_array
from numba.np.numpy_support import from_dtype

from moesaic.compiling.records import DTYPES, Member, Record, layout

_WORD = ir.IntType(64)
_NUMBERS = {"int": types.int64, "float": types.float64}


class RecordType(types.Type):
    def __init__(self, record: type[Record]) -> None:
        self.record = record
        super().__init__(name=f"{record.__name__}[{layout(record):x}]")


@register_model(RecordType)
class _Pointer(models.OpaqueModel):  # type: ignore[misc]
    pass


@typeof_impl.register(Record)  # type: ignore[untyped-decorator]
def _typeof(record: Record, context: Any) -> RecordType:
    return RecordType(type(record))


@unbox(RecordType)  # type: ignore[untyped-decorator]
def _unbox(kind: RecordType, record: Any, c: Any) -> NativeValue:
    number = c.pyapi.object_getattr_string(record, "address")
    pointer = c.pyapi.long_as_voidptr(number)
    c.pyapi.decref(number)
    return NativeValue(pointer, is_error=cgutils.is_not_null(c.builder, c.pyapi.err_occurred()))


def type_of(member: Member) -> Any:
    if member.record is not None:
        return RecordType(member.record)
    if member.shape is not None:
        return types.Array(from_dtype(_dtype(member)), len(member.shape.dims), "C")
    return _NUMBERS[member.kind]


def _dtype(member: Member) -> Any:
    return np.dtype(DTYPES[member.kind])


def _member(kind: RecordType, name: str) -> Member | None:
    return next((member for member in kind.record.members if member.name == name), None)


@infer_getattr
class _Members(AttributeTemplate):  # type: ignore[misc]
    key = RecordType

    def generic_resolve(self, kind: RecordType, name: str) -> Any:
        member = _member(kind, name)
        return None if member is None else type_of(member)


def _address(builder: Any, record: Any, at: int, kind: Any) -> Any:
    words = builder.bitcast(record, _WORD.as_pointer())
    place = builder.gep(words, [ir.Constant(_WORD, at)], source_etype=_WORD)
    return builder.bitcast(place, kind.as_pointer())


@lower_getattr_generic(RecordType)  # type: ignore[untyped-decorator]
def _get(context: Any, builder: Any, kind: RecordType, record: Any, name: str) -> Any:
    member = _member(kind, name)
    assert member is not None
    if member.record is not None:
        return _address(builder, record, member.at, ir.IntType(8))
    found = type_of(member)
    if member.shape is None:
        value = context.get_value_type(found)
        return builder.load(_address(builder, record, member.at, value), typ=value)
    return _array(context, builder, record, member, found)


def _array(context: Any, builder: Any, record: Any, member: Member, found: Any) -> Any:
    """An array over memory that compiled code does not own: it counts no references to it."""
    words = [
        builder.load(_address(builder, record, member.at + i, _WORD), typ=_WORD)
        for i in range(member.words)
    ]
    data, shape = words[0], words[1:]
    itemsize = _dtype(member).itemsize
    strides = [ir.Constant(_WORD, itemsize)]
    for length in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], length, flags=["nsw"]))
    made = make_array(found)(context, builder)
    pointer = builder.inttoptr(data, context.get_data_type(found.dtype).as_pointer())
    populate_array(made, pointer, shape, strides, itemsize, meminfo=None)
    return made._getvalue()


@lower_setattr_generic(RecordType)  # type: ignore[untyped-decorator]
def _set(context: Any, builder: Any, signature: Any, arguments: Any, name: str) -> None:
    kind, given = signature.args
    member = _member(kind, name)
    assert member is not None
    assert member.kind in _NUMBERS, f"{name} is no number"
    found = type_of(member)
    value = context.cast(builder, arguments[1], given, found)
    place = _address(builder, arguments[0], member.at, context.get_value_type(found))
    builder.store(value, place)
