"""Arithmetic as it is written in a worked solution.

Meant for a very small model that reads digit by digit. Sums and differences stand as they are:
with two or three digits the carry reaches one or two places, which a few layers can look ahead.
A product or quotient with two digits would have to be known by heart, so it is split into tens
and ones, and every part is a fact of the times tables: 24 x 3 = 20 x 3 + 4 x 3 = 60 + 12 = 72.
"""

from __future__ import annotations

from typing import NamedTuple

LARGEST = 999
_TABLES = 10  # products up to 10 x 10 are known by heart


class Step(NamedTuple):
    result: int
    text: str  # "12 + 7 = 19"


def compute(left: int, op: str, right: int) -> int | None:
    """The result, or None where grade school has none: negative, fractional or too large."""
    if op == "+":
        result = left + right
    elif op == "-":
        result = left - right
    elif op == "*":
        result = left * right
    else:
        assert op == "/", op
        if right == 0 or left % right:
            return None
        result = left // right
    return result if 0 < result <= LARGEST else None


def write(left: int, op: str, right: int) -> Step | None:
    result = compute(left, op, right)
    if result is None:
        return None
    if op == "*":
        return Step(result, _product(left, right, result))
    if op == "/":
        return Step(result, _quotient(left, right, result))
    return Step(result, f"{left} {op} {right} = {result}")


def _product(left: int, right: int, result: int) -> str:
    if left > _TABLES and left % 10:
        ones = left % 10
        tens = left - ones
        parts = f"{tens} x {right} + {ones} x {right} = {tens * right} + {ones * right}"
    elif right > _TABLES and right % 10:
        ones = right % 10
        tens = right - ones
        parts = f"{left} x {tens} + {left} x {ones} = {left * tens} + {left * ones}"
    else:
        return f"{left} x {right} = {result}"
    return f"{left} x {right} = {parts} = {result}"


def _quotient(left: int, right: int, result: int) -> str:
    ones = result % 10
    if result <= _TABLES or not ones:
        return f"{left} / {right} = {result}"
    tens = result - ones
    parts = f"{tens * right} / {right} + {ones * right} / {right} = {tens} + {ones}"
    return f"{left} / {right} = {parts} = {result}"
