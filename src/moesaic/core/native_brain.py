"""A compiled brain as a machine with a native conductor sees it: memory and C functions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NativeBrain:
    """`state` is the address of the brain's records. Functions take it; see
    `policies/brain/c_functions.py`. `lookahead` is of how many later layers forecasts are of use.
    `kept` holds the memory they point to."""

    state: int
    layers: int
    decide: int
    look_ahead: int
    begin_look_ahead: int
    finish_look_ahead: int
    learn: int
    choose_read_ahead: int
    lookahead: int
    kept: object
