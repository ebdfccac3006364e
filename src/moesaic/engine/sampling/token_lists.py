"""Sampling parameters that name tokens: a bias for some, and ids that end a sequence. Which ids a
model knows is checked with the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real

from moesaic.core.errors import ImpossibleSetting

MAX_BIAS = 100.0  # as in other engines: enough to force a token, or to exclude it
Bias = Mapping[int, float] | Sequence[tuple[int, float]]


def checked_ids(name: str, ids: object) -> tuple[int, ...]:
    """Whole numbers from 0, sorted, each once."""
    several = [ids] if _is_whole(ids) else ids
    if isinstance(several, str | bytes | Mapping) or not isinstance(several, Sequence | set):
        raise ImpossibleSetting(f"{name} is {ids!r}; it must be a list of token ids")
    for each in several:
        if not _is_whole(each) or each < 0:
            raise ImpossibleSetting(f"{name} has {each!r}; token ids are whole numbers from 0")
    return tuple(sorted({int(each) for each in several}))


def checked_bias(bias: object) -> tuple[tuple[int, float], ...]:
    try:
        pairs = dict(bias)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise ImpossibleSetting(
            f"logit_bias is {bias!r}; it must map token ids to numbers, as in {{42: -5.0}}"
        ) from None
    checked_ids("logit_bias", list(pairs))
    for token, value in pairs.items():
        fine = isinstance(value, Real) and not isinstance(value, bool)
        if not fine or not -MAX_BIAS <= value <= MAX_BIAS:
            raise ImpossibleSetting(
                f"logit_bias of token {token} is {value!r}; it must lie between {-MAX_BIAS:g} and "
                f"{MAX_BIAS:g}"
            )
    return tuple(sorted((int(token), float(value)) for token, value in pairs.items()))


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
