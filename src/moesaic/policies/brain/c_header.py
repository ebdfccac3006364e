"""The brain's records in C++: `python -m moesaic.policies.brain.c_header` writes
`native/conductor/brain_records.h` of a checkout."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from moesaic.compiling.records import Member, Record
from moesaic.policies import records
from moesaic.policies.records import LAYOUT, State

COMMAND = "python -m moesaic.policies.brain.c_header"
HEADER = "native/conductor/brain_records.h"
_ELEMENTS = {"Ints": "Word", "Floats": "double", "Octets": "std::uint8_t"}
_NUMBERS = {"int": "Word", "float": "double"}
_CONSTANTS = ("FLIGHT_CAPACITY", "MOVE_WORDS", "PLAN_HEADER")
_BEGIN = """\
// The brain's records, which its compiled functions and the conductor share. Made from
// src/moesaic/policies/records.py by `{command}`: edit that.
#pragma once

#include <cstdint>

namespace moesaic::brain {{

using Word = std::int64_t;

// Elements in order, the last dimension's beside each other.
template <class T, int kDims>
struct Array {{
  T* data;
  Word shape[kDims];

  T& operator[](Word i) const {{ return data[i]; }}
  // The first element of a part, where the first dimension says which.
  T* part(Word i) const {{
    for (int d = 1; d < kDims; ++d) i *= shape[d];
    return data + i;
  }}
}};

constexpr Word kLayout = {layout};  // a hash of what follows, which stands in every State, too
"""


def header() -> str:
    """The whole file."""
    lines = [_BEGIN.format(command=COMMAND, layout=LAYOUT)]
    for name in _CONSTANTS:
        words = "".join(word.capitalize() for word in name.split("_"))
        lines.append(f"constexpr Word k{words} = {getattr(records, name)};")
    for record in _inside_first(State):
        lines += ["", f"struct {record.__name__} {{"]
        lines += [f"  {_type(member)} {member.name};" for member in record.members]
        size = f"sizeof({record.__name__}) == {record.words} * sizeof(Word)"
        lines += ["};", f"static_assert({size});"]
    return "\n".join([*lines, "", "}  // namespace moesaic::brain", ""])


def _inside_first(record: type[Record]) -> Iterator[type[Record]]:
    for member in record.members:
        if member.record is not None:
            yield from _inside_first(member.record)
    yield record


def _type(member: Member) -> str:
    if member.record is not None:
        return member.record.__name__
    if member.shape is not None:
        return f"Array<{_ELEMENTS[member.kind]}, {len(member.shape.dims)}>"
    return _NUMBERS[member.kind]


if __name__ == "__main__":
    path = Path(__file__).parents[4] / HEADER
    if not path.parent.is_dir():
        sys.exit(f"{path.parent} is no folder: run this in a checkout")
    path.write_text(header())
