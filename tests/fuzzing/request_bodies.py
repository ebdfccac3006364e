"""The bodies that the published APIs describe: for every endpoint what it needs, its other fields,
and values that a field cannot have.

Alone beside what an endpoint needs, a right field is answered with 200 and a wrong one with 400;
several right fields together may be impossible, which is a 400, too. Answers are short.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuzzing.answer_schemas import of_object
from fuzzing.json_values import (
    Make,
    anything,
    choice,
    constant,
    name,
    real,
    record,
    several,
    text,
    whole,
)

MODEL = "moesaic-20m"
VOCABULARY = 1024  # token ids that every model here has
_BOOLEAN = choice(True, False)
_NO_TEXT: Sequence[Any] = (3, [], {}, True)
_NO_WHOLE: Sequence[Any] = ("3", 1.5, [], True)
_NO_REAL: Sequence[Any] = ("hot", [1], {}, True)
_NO_BOOLEAN: Sequence[Any] = (0, "true", [], {})
_NO_OBJECT: Sequence[Any] = (3, "x", [1], True)
_NO_LIST: Sequence[Any] = (3, True, {})


@dataclass(frozen=True)
class Field:
    """`right` makes the field, with those that it needs beside it."""

    right: Make
    wrong: Sequence[Any]


@dataclass(frozen=True)
class Body:
    """What an endpoint takes; `needed` must be there."""

    path: str
    needed: Mapping[str, Field]
    fields: Mapping[str, Field] = field(default_factory=dict)
    short: Mapping[str, Any] = field(default_factory=dict)  # a limit on the answer

    def least(self, rng: random.Random) -> dict[str, Any]:
        made = dict(self.short)
        for each in self.needed.values():
            made |= each.right(rng)
        return made

    def with_fields(self, rng: random.Random, count: int) -> dict[str, Any]:
        made = self.least(rng)
        for each in rng.sample(sorted(self.fields), min(count, len(self.fields))):
            made |= self.fields[each].right(rng)
        return made

    def with_a_wrong_field(self, rng: random.Random) -> dict[str, Any]:
        every = {**self.needed, **self.fields}
        wrong = rng.choice(sorted(name for name, each in every.items() if each.wrong))
        made = self.least(rng) | {wrong: rng.choice(every[wrong].wrong)}
        if wrong in self.needed and rng.random() < 0.3:
            del made[wrong]
        return made


def _field(name: str, right: Make, wrong: Sequence[Any]) -> dict[str, Field]:
    return {name: Field(record({name: right}), wrong)}


def _fields(*made: dict[str, Field]) -> dict[str, Field]:
    return {name: each for fields in made for name, each in fields.items()}


def _group(name: str, right: Mapping[str, Make], wrong: Sequence[Any]) -> dict[str, Field]:
    return {name: Field(record(right), wrong)}


_PARTS = several(record({"type": constant("text"), "text": text}), 1, 2)
_CONTENT = choice(text, _PARTS)
_ASKED = record({"role": constant("user"), "content": _CONTENT})
_ANSWERED = record({"role": constant("assistant"), "content": _CONTENT})


def _talk(rng: random.Random) -> list[dict[str, Any]]:
    """Users and assistants in turns, a user last."""
    turns = [each(rng) for _ in range(rng.randrange(2)) for each in (_ASKED, _ANSWERED)]
    return [*turns, _ASKED(rng)]


_FUNCTION = record({"name": name}, {"description": text, "parameters": of_object})
_TOOLS = several(record({"type": constant("function"), "function": _FUNCTION}), 1, 2)
_USER = _field("user", text, (3, [], {}))
_NAME = _field("model", choice(MODEL, None), (3, [], {}))
_STREAM = _field("stream", _BOOLEAN, _NO_BOOLEAN)
_UNKNOWN = {"unheard_of": Field(lambda rng: {f"x_{name(rng)}": anything(rng)}, ())}
_MESSAGES = _field(
    "messages", _talk, (*_NO_LIST, "x", [], [3], [{}], [{"role": 3, "content": "a"}],
                        [{"role": "king", "content": "a"}], [{"role": "user"}],
                        [{"role": "user", "content": 3}], [{"role": "user", "content": [{}]}]),
)  # fmt: skip
_HEAT = _fields(
    _field("temperature", real(0, 2), (*_NO_REAL, -1, 101)),
    _field("top_p", real(0, 1), (*_NO_REAL, -0.1, 1.1)),
)
_SAMPLING = _fields(
    _HEAT,
    _NAME,
    _USER,
    _STREAM,
    _UNKNOWN,
    _field("max_tokens", whole(1, 6), (*_NO_WHOLE, 0, -1)),
    _field("min_tokens", whole(0, 2), (*_NO_WHOLE, -1, 5)),
    _field("top_k", whole(-1, 5000), (*_NO_WHOLE, -2)),
    _field("min_p", real(0, 1), (*_NO_REAL, 2)),
    _field("seed", whole(-(2**63), 2**64 - 1), ("3", 1.5, [])),
    _field("stop", choice(text, several(text, 0, 4)), (3, [3], {}, "", [""])),
    _field("stop_token_ids", several(whole(0, VOCABULARY - 1), 0, 3), (3, ["x"], [-1], [10**9])),
    _field("ignore_eos", _BOOLEAN, _NO_BOOLEAN),
    _group("n", {"n": whole(1, 3), "temperature": constant(1)}, (*_NO_WHOLE, 0, -1, 5000)),
    _field("presence_penalty", real(-2, 2), (*_NO_REAL, 3)),
    _field("frequency_penalty", real(-2, 2), (*_NO_REAL, -3)),
    _field("repetition_penalty", real(1, 2), (*_NO_REAL, 0, -1)),
    _field("logit_bias", lambda rng: {str(rng.randrange(VOCABULARY)): rng.uniform(-100, 100)},
           (3, {"x": 1}, {"1": "x"}, {"1": 101}, {str(10**9): 1}, {"-1": 1})),
    _group("stream_options", {"stream": constant(True),
                              "stream_options": record({}, {"include_usage": _BOOLEAN})},
           (3, [1], {"include_usage": 3})),
    _field("response_format", choice({"type": "text"}, {"type": "json_object"},
           record({"type": constant("json_schema"), "json_schema": record({"schema": of_object})})),
           (3, {}, {"type": "xml"}, {"type": "json_schema"}, {"type": 1})),
)  # fmt: skip
CHAT = Body(
    "/v1/chat/completions",
    _MESSAGES,
    _fields(
        _SAMPLING,
        _field("max_completion_tokens", whole(1, 6), (*_NO_WHOLE, 0)),
        _group("logprobs", {"logprobs": constant(True)}, ("yes", 3, [])),
        _group("top_logprobs", {"logprobs": constant(True), "top_logprobs": whole(0, 20)},
               (3, -1, 21, "3")),
        _field("tools", _TOOLS, (3, [3], [{}], [{"type": "function"}], [{"type": "web_search"}],
               [{"type": "function", "function": {"name": 3}}])),
        _group("tool_choice", {"tools": _TOOLS, "tool_choice": choice("auto", "none", "required")},
               (3, "x", "required", {"type": "function"},
                {"type": "function", "function": {"name": "unknown"}})),
        _field("parallel_tool_calls", _BOOLEAN, _NO_BOOLEAN),
        _field("chat_template_kwargs", record({}, {"enable_thinking": _BOOLEAN}),
               (3, "x", [1], {"messages": []})),
    ),
    {"max_tokens": 3},
)  # fmt: skip
_IDS = several(whole(0, VOCABULARY - 1), 1, 20)
COMPLETIONS = Body(
    "/v1/completions",
    _field("prompt", choice(text, _IDS, several(text, 1, 3), several(_IDS, 1, 2)),
           (3, True, {}, [], [[]], [1, "a"], [1.5], [{}], [-1], [10**9], [2**80], ["a", [True]])),
    _fields(
        _SAMPLING,
        _field("logprobs", whole(0, 20), (*_NO_WHOLE, -1, 21)),
        _field("echo", _BOOLEAN, _NO_BOOLEAN),
        _field("best_of", constant(1), (*_NO_WHOLE, 7)),
        _field("suffix", constant(""), (3, "after", [])),
    ),
    {"max_tokens": 3},
)  # fmt: skip
_ITEM = record(
    {"role": constant("user"), "content": choice(text, several(
        record({"type": constant("input_text"), "text": text}), 1, 2))},
    {"type": constant("message"), "id": name},
)  # fmt: skip
_RESPONSES_TOOLS = several(
    record({"type": constant("function"), "name": name, "parameters": of_object}), 1, 2
)
RESPONSES = Body(
    "/v1/responses",
    _field("input", choice(text, several(_ITEM, 1, 3)),
           (3, True, {}, [], [3], [{"role": "user", "content": 3}], [{"role": 3, "content": "a"}],
            [{"role": "king", "content": "a"}], [{"type": "function_call"}])),
    _fields(
        _HEAT, _NAME, _USER, _STREAM, _UNKNOWN,
        _field("max_output_tokens", whole(1, 6), (*_NO_WHOLE, 0)),
        _field("store", _BOOLEAN, _NO_BOOLEAN),
        _field("tools", choice(_RESPONSES_TOOLS, [{"type": "web_search"}]),
               (3, [3], [{}], [{"type": "function"}], [{"type": 3}])),
        _group("tool_choice", {"tools": _RESPONSES_TOOLS,
                               "tool_choice": choice("auto", "none", "required")}, (3, [1])),
        _field("text", choice({}, {"format": {"type": "text"}}, {"format": {"type": "json_object"}},
               record({"format": record({"type": constant("json_schema"), "name": name,
                                         "schema": of_object})})),
               (3, {"format": 3}, {"format": {}}, {"format": {"type": "xml"}},
                {"format": {"type": "json_schema"}})),
        _field("metadata", record({}, {"a": text}), (3, {"a": 3}, [1])),
        _field("background", constant(False), (True, 3)),
        _field("parallel_tool_calls", _BOOLEAN, _NO_BOOLEAN),
        _field("previous_response_id", constant(None), (3, [])),
        _field("conversation", constant(None), ("conv_1", {"id": "conv_1"}, 3)),
        _field("prompt_cache_key", name, (3, [])),
    ),
    {"max_output_tokens": 3},
)  # fmt: skip
_BLOCKS = choice(text, _PARTS)
_COUNTED = _fields(
    _NAME,
    _UNKNOWN,
    _field("tools", several(record({"name": name, "input_schema": of_object},
                                   {"description": text}), 1, 2),
           (3, [3], [{}], [{"name": 3}])),
    _field("thinking", record({"type": choice("enabled", "disabled", "adaptive")}),
           (3, {}, {"type": "maybe"})),
)  # fmt: skip
_TURNS = _field(
    "messages",
    lambda rng: [{"role": "user", "content": _BLOCKS(rng)}],
    (3, True, {}, "x", [], [3], [{}], [{"role": "king", "content": "a"}], [{"role": "user"}],
     [{"role": "user", "content": 3}], [{"role": "user", "content": [{"type": "image"}]}],
     [{"role": "user", "content": [{"type": "tool_result", "content": "a"}]}],
     [{"role": "assistant", "content": [{"type": "tool_use", "id": "t"}]}]),
)  # fmt: skip
MESSAGES = Body(
    "/v1/messages",
    _TURNS | _field("max_tokens", whole(1, 6), (*_NO_WHOLE, 0, None)),
    _fields(
        _COUNTED, _STREAM, _HEAT,
        _field("top_k", whole(0, 5000), _NO_WHOLE),
        _field("stop_sequences", several(text, 0, 3), (3, [3], [""])),
        _field("metadata", record({}, {"user_id": text}), (3, {"user_id": 3})),
        _field("output_config", choice({}, record({"format": record(
            {"type": constant("json_schema"), "schema": of_object})})),
            (3, {"format": {"type": "json_schema"}}, {"format": {"type": "xml"}})),
        _field("tool_choice", record({"type": constant("auto")}), (3, {}, {"type": 3})),
    ),
)  # fmt: skip
COUNT = Body("/v1/messages/count_tokens", _TURNS, _COUNTED)
TOKENIZE = Body(
    "/tokenize",
    _field("prompt", text, (3, [], {}, True)),
    _fields(_NAME, _UNKNOWN, _field("add_special_tokens", _BOOLEAN, _NO_BOOLEAN),
            {"messages": Field(lambda rng: {}, (3, "x", [3], [{"role": "user", "content": "a"}]))}),
)  # fmt: skip
DETOKENIZE = Body(
    "/detokenize",
    _field("tokens", several(whole(0, VOCABULARY - 1), 0, 30), (3, "x", [-1], ["a"], [10**9], {})),
    _fields(_NAME, _UNKNOWN),
)
BODIES = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, COUNT, TOKENIZE, DETOKENIZE)
