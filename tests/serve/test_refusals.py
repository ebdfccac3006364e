"""Is every mistake of a client refused with the API's error object, which says what is possible?"""

from __future__ import annotations

import json
import time
from typing import Any

import openai
import pytest
from servers import NAME, QUESTION, Server

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def refused(server: Server, path: str, body: object, status: int = 400) -> dict[str, Any]:
    got, data = server.ask(path, body)
    assert got == status, data
    error = json.loads(data)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "Traceback" not in error["message"]
    return error  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("fields", "param", "what"),
    [
        ({"temperature": "hot"}, "temperature", "Expected `float | null`, got `str`"),
        ({"temperature": -1}, "temperature", "must lie between 0 and 100"),
        ({"top_p": 1.5}, "top_p", "must lie between 0 and 1"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_tokens": True}, "max_tokens", "Expected `int | null`, got `bool`"),
        ({"n": 2, "temperature": 0}, None, "would all be the same"),
        ({"n": 1000, "temperature": 1}, "n", "this server takes 516: 4 are written at a time"),
        ({"stop": [3]}, "stop", "Expected `str`"),
        ({"stop": ""}, "stop", "leave it out"),
        ({"stop": ["a"] * 257}, "stop", "stop has 257 strings of 257 characters in all"),
        ({"stop": "a" * 16_385}, "stop", "looks for up to 256 of 16384 characters"),
        ({"logit_bias": {"no number": 1}}, "logit_bias", "Expected `int`"),
        ({"logit_bias": {"3": 1000}}, "logit_bias", "between -100 and 100"),
        ({"top_logprobs": 3}, "top_logprobs", "set logprobs to true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "between 0 and 20"),
        ({"response_format": {"type": "xml"}}, "response_format", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema"),
        ({"grammar": "start: nowhere"}, None, "grammar: "),
        ({"regex": "("}, None, "regex: "),
        ({"regex": "a", "grammar": 'start: "a"'}, "regex", "grammar and regex were given"),
        ({"regex": "a", "guided_json": {}}, "guided_json", "leave out one of the two"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "is empty"),
        ({"guided_choice": ["a", ""]}, "guided_choice", "has an empty text"),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", "a tool is a function"),
        ({"messages": []}, "messages", "at least one"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "no content"),
        ({"messages": [{"role": "king", "content": "a"}]}, None, "unknown role"),
        ({"messages": [{"role": "system", "content": "a"}, *QUESTION]}, None, "drops the system"),
        ({"chat_template_kwargs": 3}, "chat_template_kwargs", "Expected `object | null`"),
    ],
)
def test_an_impossible_value_is_named(
    shared: Server, fields: dict[str, Any], param: str | None, what: str
) -> None:
    error = refused(shared, CHAT, {"model": NAME, "messages": QUESTION, "max_tokens": 2} | fields)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert what in error["message"]


def test_a_picture_is_refused(shared: Server) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:,"}}
    error = refused(shared, CHAT, {"messages": [{"role": "user", "content": [part]}]})
    assert "reads text" in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 4}, "best_of"),
        ({"prompt": "a", "echo": True, "logprobs": 1}, "echo"),
        ({"prompt": [10**6]}, None),
        ({}, "prompt"),
    ],
)
def test_an_impossible_prompt_is_named(
    shared: Server, fields: dict[str, Any], param: str | None
) -> None:
    assert refused(shared, TEXT, fields)["param"] == param


def test_unknown_fields_are_ignored(shared: Server) -> None:
    shared.json(CHAT, {"messages": QUESTION, "max_tokens": 1, "unheard_of": {"a": [1]}})


def test_what_is_not_json_is_refused(shared: Server) -> None:
    for data in (b"{", b"\xff", b"[]", b""):
        refused(shared, CHAT, data)


def test_a_prompt_beyond_the_context_says_how_long_it_may_be(shared: Server) -> None:
    error = refused(shared, TEXT, {"prompt": [5] * 2000, "max_tokens": 1})
    assert error["code"] == "context_length_exceeded"
    assert "this server takes 1023" in error["message"]


def test_a_text_that_is_certainly_too_long_does_not_become_tokens(shared: Server) -> None:
    text = "All experts rest. " * 4000
    for path, body in (
        (TEXT, {"prompt": text}),
        (CHAT, {"messages": [{"role": "user", "content": text}]}),
    ):
        error = refused(shared, path, body)
        assert error["code"] == "context_length_exceeded"
        assert "the prompt has at least" in error["message"]


def test_too_many_answers_are_refused_before_they_are_made(shared: Server) -> None:
    began = time.monotonic()
    error = refused(shared, TEXT, {"prompt": ["a"] * 2000, "n": 1024, "temperature": 1})
    assert "2048000 answers were asked for at once; this server takes 516" in error["message"]
    assert time.monotonic() - began < 5, "making them takes half a minute and more"


def test_an_unknown_model_is_404(shared: Server) -> None:
    client = shared.client()
    with pytest.raises(openai.NotFoundError) as refusal:
        client.chat.completions.create(model="gpt-4", messages=QUESTION)
    assert refusal.value.code == "model_not_found"
    assert NAME in str(refusal.value)


def test_an_unknown_path_is_404_and_a_wrong_method_405(shared: Server) -> None:
    assert "/v1/models" in refused(shared, "/v2/models", {}, 404)["message"]
    assert shared.get(CHAT)[0] == 405


def test_a_body_that_is_too_large_is_413(shared: Server) -> None:
    body = {"messages": [{"role": "user", "content": "a" * 200_000}]}
    assert "--max-body-mb" in refused(shared, CHAT, body, 413)["message"]


def test_what_was_refused_left_nothing_in_the_engine(shared: Server) -> None:
    assert shared.json("/slots") == []
    assert shared.metric("moesaic_requests_running") == 0
