"""How much a model is to think, in the words of each API and in those of chat templates."""

from __future__ import annotations

from typing import Any

from moesaic.models.text.tokenizer import Tokenizer
from moesaic.serve.api_error import impossible

# What templates know: those that take an effort were trained with three.
_EFFORTS = {
    "none": "low",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}


def thinking_variables(thinks: bool) -> dict[str, Any]:
    """Templates have one of these names."""
    return {"enable_thinking": thinks, "thinking": thinks}


def effort_variables(effort: str | None, tokenizer: Tokenizer) -> dict[str, Any]:
    """None: as the template does where nothing is said. A template without an effort gets none."""
    if effort is None:
        return {}
    if effort not in _EFFORTS:
        raise impossible(
            f"the reasoning effort is {effort!r}; possible are {', '.join(_EFFORTS)}",
            "reasoning_effort",
        )
    made = thinking_variables(False) if effort == "none" else {}
    if tokenizer.names_in_template("reasoning_effort"):
        made["reasoning_effort"] = _EFFORTS[effort]
    return made
