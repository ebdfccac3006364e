"""The bodies of requests, strictly typed: a wrong type is refused with the field's name. Fields
that the published API has and that are not here are ignored, as unknown fields are there."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from moesaic.serve.api_error import impossible

Body = TypeVar("Body", bound=msgspec.Struct)


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class JsonSchema(msgspec.Struct):
    schema: dict[str, Any] | None = None
    name: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct):
    type: str
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct):
    """As other servers call it."""

    json: str | dict[str, Any] | None = None
    grammar: str | None = None
    regex: str | None = None
    choice: list[str] | None = None


class Sampling(msgspec.Struct, kw_only=True):
    """What both ways to generate share. None: as the model's generation_config.json says."""

    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    response_format: ResponseFormat | None = None
    grammar: str | None = None
    regex: str | None = None
    guided_json: str | dict[str, Any] | None = None  # as other servers call it, and those below
    guided_grammar: str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    structured_outputs: StructuredOutputs | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct):
    function: CalledFunction
    id: str | None = None
    type: str | None = None


class Message(msgspec.Struct):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None  # as other servers call it

    @property
    def thought(self) -> str | None:
        """What an assistant's message was preceded by. Other forms than text are of other servers,
        and are left out."""
        both = (self.reasoning_content, self.reasoning)
        return next((each for each in both if isinstance(each, str) and each), None)


class FunctionDefinition(msgspec.Struct, omit_defaults=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    type: str
    function: FunctionDefinition | None = None


class ChatRequest(Sampling, kw_only=True):
    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


Prompt = str | list[int]


class CompletionRequest(Sampling, kw_only=True):
    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None

    def prompts(self) -> list[Prompt]:
        """One text, several texts, one list of token ids, or several."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        numbers = [each for each in self.prompt if isinstance(each, int)]
        if numbers and len(numbers) == len(self.prompt):
            return [numbers]
        prompts = [each for each in self.prompt if not isinstance(each, int)]
        if numbers or not prompts:
            what = "mixes token ids with texts or lists" if numbers else "is empty"
            raise impossible(
                f"prompt {what}: give a text, a list of texts, a list of token ids, or a list of "
                "such lists",
                "prompt",
            )
        return prompts


class TokenizeRequest(msgspec.Struct):
    """Either a text or a conversation."""

    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool = True
    tools: list[Tool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    model: str | None = None


class DetokenizeRequest(msgspec.Struct):
    tokens: list[int]
    model: str | None = None


_PLACE = re.compile(r" - at (?:`(?:key|value)` in )?`([^`]*)`$")


def decode(data: bytes, kind: type[Body]) -> Body:
    """The body, or an error that names the field."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        text = str(error)
        place = _PLACE.search(text)
        path = "" if place is None else place[1].removeprefix("$")
        what = text if place is None else text[: place.start()]
        where = f"{path.lstrip('.')}: " if path else ""
        raise impossible(
            f"the request cannot be used: {where}{what}", _parameter(path, what)
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise impossible(f"the body is not JSON: {error}", code="invalid_json") from None


def _parameter(path: str, what: str) -> str | None:
    """`.messages[...].role` is about messages; a missing field is named in the sentence."""
    field = re.match(r"\.?(\w+)", path)
    if field is not None:
        return field[1]
    missing = re.search(r"missing required field `(\w+)`", what)
    return None if missing is None else missing[1]
