"""Options that would change nothing: refused, not ignored.

An option that was not given is None here, whatever its default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moesaic.core.errors import ImpossibleSetting

_OTHER_PHASE = {"batch": "decode", "context": "decode", "prompts": "prefill"}  # where they count


def check_phase_options(asked: Mapping[str, Any]) -> None:
    phase = asked["phase"]
    for option, its_phase in _OTHER_PHASE.items():
        if phase in ("decode", "prefill") and phase != its_phase and asked.get(option) is not None:
            raise ImpossibleSetting(
                f"--{option} {asked[option]} means nothing in {phase}: leave it out, or use "
                f"--phase {its_phase}"
            )
