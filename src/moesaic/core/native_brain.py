"""A compiled brain as a machine with a native conductor sees it: a buffer and C functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NativeBrain:
    """`fields` are the numbers of the buffer's fields by name. Functions take the buffer's
    address; see `policies/brain/c_functions.py`. `lookahead` is of how many later layers forecasts
    are of use. `kept` holds the memory they point to."""

    words: int  # address of the buffer
    layers: int
    fields: Mapping[str, int]
    decide: int
    look_ahead: int
    begin_look_ahead: int
    finish_look_ahead: int
    learn: int
    choose_read_ahead: int
    lookahead: int
    kept: object
