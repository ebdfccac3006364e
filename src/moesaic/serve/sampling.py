"""From the sampling fields of a request to the engine's sampling parameters."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.serve.api_error import impossible
from moesaic.serve.schemas import ChatRequest, CompletionRequest, Sampling
from moesaic.serve.text_form import text_form

MOST_LOGPROBS = 20  # alternatives per token, as in the published API
MOST_STOPS, MOST_STOP_CHARACTERS = 256, 16_384  # looked for in the text of each token
_FORMS = {"json_schema", "grammar", "regex"}  # which requests give in several ways
_FIELDS = frozenset(field.name for field in fields(SamplingParams)) - {"logprobs"} - _FORMS


def chat_params(request: ChatRequest, defaults: SamplingParams, context: int) -> SamplingParams:
    asked = _common(request, context)
    if request.max_completion_tokens is not None:
        asked["max_tokens"] = request.max_completion_tokens
    if request.top_logprobs is not None and not request.logprobs:
        raise impossible(
            "top_logprobs was given without logprobs: set logprobs to true, or leave it out",
            "top_logprobs",
        )
    if request.logprobs:
        asked["logprobs"] = _alternatives("top_logprobs", request.top_logprobs or 0)
    return replace(defaults, **asked)


def completion_params(
    request: CompletionRequest, defaults: SamplingParams, context: int
) -> SamplingParams:
    asked = _common(request, context)
    if request.logprobs is not None:
        asked["logprobs"] = _alternatives("logprobs", request.logprobs)
    return replace(defaults, **asked)


def answers_asked(request: Sampling, defaults: SamplingParams) -> int:
    """To one prompt."""
    return defaults.n if request.n is None else request.n


def _common(request: Sampling, context: int) -> dict[str, Any]:
    """What was asked for; without a limit, an answer may fill the context."""
    _check_stop(request.stop)
    given = {name: getattr(request, name) for name in request.__struct_fields__ if name in _FIELDS}
    asked = {name: value for name, value in given.items() if value is not None}
    asked.setdefault("max_tokens", max(context, request.min_tokens or 0))
    if asked.get("top_k") == -1:  # how other servers write that all tokens are kept
        asked["top_k"] = 0
    return asked | text_form(request)


def _check_stop(stop: str | list[str] | None) -> None:
    several = [stop] if isinstance(stop, str) else stop or []
    length = sum(map(len, several))
    if len(several) > MOST_STOPS or length > MOST_STOP_CHARACTERS:
        raise impossible(
            f"stop has {len(several)} strings of {length} characters in all; this server looks "
            f"for up to {MOST_STOPS} of {MOST_STOP_CHARACTERS} characters: give fewer",
            "stop",
        )


def _alternatives(name: str, count: int) -> int:
    if not 0 <= count <= MOST_LOGPROBS:
        raise impossible(f"{name} is {count}; it must lie between 0 and {MOST_LOGPROBS}", name)
    return count
