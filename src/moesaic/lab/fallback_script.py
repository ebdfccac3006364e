"""Which tokens fall back where no model's confidence says so: a given share of them.

Decided by the token's number alone, by multiples of the golden ratio: every stretch of a run has
very nearly the share that was asked for, and equal runs have equal fallbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import sqrt

from moesaic.core.errors import ImpossibleSetting

_GOLDEN = (sqrt(5) - 1) / 2
_BETWEEN_SEQUENCES = sqrt(2) - 1  # so that sequences of a batch fall back at different tokens

Script = Callable[[int, int], bool]  # sequence, number of its token -> whether it falls back


def script(ratio: float, seed: int = 0) -> Script:
    """The little pass of so large a share of all tokens is rejected."""

    def falls_back(sequence: int, token: int) -> bool:
        return (_GOLDEN * (token + 1 + 7919 * seed) + _BETWEEN_SEQUENCES * sequence) % 1.0 < ratio

    return falls_back


def check_ratio(ratio: float | None, gates: Iterable[str], reruns: bool) -> None:
    """`reruns`: whether any of these gates runs tokens again."""
    if ratio is None:
        return
    if not 0.0 <= ratio <= 1.0:
        raise ImpossibleSetting(
            f"the fallback ratio is {ratio:g}; it is the share of tokens that run again and must "
            "lie between 0 and 1"
        )
    if not reruns:
        names = " or ".join(map(repr, dict.fromkeys(gates)))
        raise ImpossibleSetting(
            f"a fallback ratio of {ratio:g} was given, but gate {names} runs no token again: "
            "leave it out, or use a gate that does, such as --gate big-little or self-speculative"
        )
