"""Options that would change nothing: refused, since whoever gives one believes that it does.

An option that was not given is None here, whatever its default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from moesaic.core.errors import ImpossibleSetting

_OTHER_PHASE = {"batch": "decode", "context": "decode", "prompts": "prefill"}  # where they count
_ALPHA_CACHE = "mrs"


def check_phase_options(asked: Mapping[str, Any]) -> None:
    phase = asked["phase"]
    for option, its_phase in _OTHER_PHASE.items():
        if phase in ("decode", "prefill") and phase != its_phase and asked.get(option) is not None:
            raise ImpossibleSetting(
                f"--{option} {asked[option]} means nothing in {phase}: leave it out, or use "
                f"--phase {its_phase}"
            )


def check_cache_options(asked: Mapping[str, Any], caches: Iterable[str]) -> None:
    """`caches` are those of all runs that share these options."""
    used = list(dict.fromkeys(caches))
    if asked.get("alpha") is not None and _ALPHA_CACHE not in used:
        raise ImpossibleSetting(
            f"--alpha {asked['alpha']} is of the cache {_ALPHA_CACHE}, and here the cache is "
            f"{' or '.join(used)}: leave it out, or choose the cache {_ALPHA_CACHE}"
        )


def only_for_its_cache(asked: Mapping[str, Any], cache: str) -> dict[str, Any]:
    """What was asked, as far as it concerns a run with this cache."""
    return {**asked, "alpha": asked.get("alpha") if cache == _ALPHA_CACHE else None}
