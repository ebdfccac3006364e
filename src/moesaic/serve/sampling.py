"""From the sampling fields of a request to the engine's sampling parameters."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.serve.api_error import impossible
from moesaic.serve.schemas import ChatRequest, CompletionRequest, ResponseFormat, Sampling

MOST_LOGPROBS = 20  # alternatives per token, as in the published API
MOST_STOPS, MOST_STOP_CHARACTERS = 256, 16_384  # looked for in the text of each token
_ANY_JSON_OBJECT = '{"type": "object"}'
_FIELDS = frozenset(field.name for field in fields(SamplingParams)) - {"logprobs", "json_schema"}


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
    if request.response_format is not None:
        asked |= _form(request.response_format)
    return asked


def _check_stop(stop: str | list[str] | None) -> None:
    several = [stop] if isinstance(stop, str) else stop or []
    length = sum(map(len, several))
    if len(several) > MOST_STOPS or length > MOST_STOP_CHARACTERS:
        raise impossible(
            f"stop has {len(several)} strings of {length} characters in all; this server looks "
            f"for up to {MOST_STOPS} of {MOST_STOP_CHARACTERS} characters: give fewer",
            "stop",
        )


def _form(wanted: ResponseFormat) -> dict[str, Any]:
    match wanted.type:
        case "text":
            return {}
        case "json_object":
            return {"json_schema": _ANY_JSON_OBJECT}
        case "json_schema" if wanted.json_schema is not None:
            if wanted.json_schema.schema is None:
                raise impossible("response_format has no json_schema.schema", "response_format")
            return {"json_schema": wanted.json_schema.schema}
        case "json_schema":
            raise impossible(
                "response_format is of type json_schema and has no json_schema: give it one, as "
                '{"type": "json_schema", "json_schema": {"name": "answer", "schema": {...}}}',
                "response_format",
            )
    raise impossible(
        f"response_format has the type {wanted.type!r}; possible are text, json_object and "
        "json_schema",
        "response_format",
    )


def _alternatives(name: str, count: int) -> int:
    if not 0 <= count <= MOST_LOGPROBS:
        raise impossible(f"{name} is {count}; it must lie between 0 and {MOST_LOGPROBS}", name)
    return count
