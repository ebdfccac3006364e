"""Does the published client get the model's answers from /v1/chat/completions?"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from servers import NAME, QUESTION, Server

from moesaic import LLM, SamplingParams


@pytest.fixture(scope="module")
def client(shared: Server) -> Any:
    return shared.client()


@pytest.fixture(scope="module")
def model() -> Iterator[LLM]:
    with LLM(threads=1, accelerator="none") as made:
        yield made


def ask(client: Any, **options: Any) -> Any:
    return client.chat.completions.create(
        **{"model": NAME, "messages": QUESTION, "max_tokens": 24} | options
    )


def test_a_greedy_answer_is_that_of_llm(client: Any, model: LLM) -> None:
    expected = model.chat(QUESTION, SamplingParams(max_tokens=24, temperature=0.0))
    answer = ask(client, temperature=0)
    assert answer.object == "chat.completion"
    assert answer.model == NAME
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == expected.text
    assert choice.finish_reason == expected.finish_reason
    assert answer.usage.prompt_tokens == len(expected.prompt_tokens)
    assert answer.usage.completion_tokens == len(expected.tokens)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + len(expected.tokens)


def test_a_stream_has_the_same_text_and_usage(client: Any) -> None:
    whole = ask(client, temperature=0)
    chunks = list(ask(client, temperature=0, stream=True, stream_options={"include_usage": True}))
    *parts, last = chunks
    assert parts[0].choices[0].delta.role == "assistant"
    assert all(part.usage is None for part in parts)
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    assert text == whole.choices[0].message.content
    assert parts[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert last.choices == []
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1
    assert sum(part.choices[0].finish_reason is not None for part in parts) == 1


def test_what_the_kv_cache_has_is_in_the_usage(client: Any) -> None:
    long = [{"role": "user", "content": "There are 3 red and 4 blue pens on the desk. " * 12}]
    first = ask(client, messages=long, max_tokens=1)
    second = ask(client, messages=long, max_tokens=1)
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert second.usage.prompt_tokens_details.cached_tokens > 64


def test_several_answers_are_numbered(client: Any) -> None:
    asked = {"n": 3, "temperature": 1.0, "seed": 7, "max_tokens": 8}
    whole = ask(client, **asked)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    texts = ["", "", ""]
    for chunk in ask(client, stream=True, **asked):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]
    assert len(set(texts)) > 1
    assert whole.usage.prompt_tokens < 3 * whole.usage.completion_tokens, "counted once"


def test_a_stop_string_ends_an_answer(client: Any) -> None:
    text = ask(client, temperature=0).choices[0].message.content
    word = text.split()[2]
    cut = ask(client, temperature=0, stop=[word, "never this"]).choices[0]
    assert cut.message.content == text[: text.index(word)]
    assert cut.finish_reason == "stop"


def test_a_cut_answer_has_the_reason_length(client: Any) -> None:
    answer = ask(client, max_completion_tokens=2, max_tokens=24, temperature=0)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 2


def test_logprobs_are_of_every_token(client: Any) -> None:
    asked = {"temperature": 0, "logprobs": True, "top_logprobs": 2, "max_tokens": 6}
    whole = ask(client, **asked).choices[0]
    tokens = whole.logprobs.content
    assert "".join(token.token for token in tokens).strip() == whole.message.content.strip()
    for token in tokens:
        assert bytes(token.bytes).decode() == token.token
        best, second = token.top_logprobs
        assert token.token == best.token
        assert second.logprob <= best.logprob == pytest.approx(token.logprob)
    streamed = [
        token
        for chunk in ask(client, stream=True, **asked)
        for choice in chunk.choices
        if choice.logprobs is not None
        for token in choice.logprobs.content
    ]
    assert [token.token for token in streamed] == [token.token for token in tokens]


def test_an_answer_follows_a_json_schema(client: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"pens": {"type": "integer"}, "enough": {"type": "boolean"}},
        "required": ["pens", "enough"],
    }
    form = {"type": "json_schema", "json_schema": {"name": "pens", "schema": schema}}
    answer = ask(client, response_format=form, max_tokens=40, temperature=0).choices[0]
    read = json.loads(answer.message.content)
    assert isinstance(read["pens"], int)
    assert isinstance(read["enough"], bool)


def test_an_answer_is_some_json_object(client: Any) -> None:
    asked = {"response_format": {"type": "json_object"}, "max_tokens": 40, "temperature": 0}
    answer = ask(client, **asked).choices[0]
    assert answer.message.content.startswith("{")
    if answer.finish_reason == "stop":
        assert isinstance(json.loads(answer.message.content), dict)


@pytest.mark.parametrize(
    "form",
    [
        {"regex": "(red|blue) [0-9]{2}"},
        {"grammar": 'start: ("red" | "blue") " " /[0-9][0-9]/'},
        {"guided_regex": "(red|blue) [0-9]{2}"},
        {"guided_grammar": 'root ::= ("red" | "blue") " " [0-9] [0-9]'},
        {"structured_outputs": {"regex": "(red|blue) [0-9]{2}"}},
        {"guided_choice": ["red 12", "blue 12"]},
        {"structured_outputs": {"choice": ["red 12", 'blue 12"']}},
    ],
)
def test_an_answer_has_the_form_that_was_asked_for(
    client: Any, shared: Server, form: dict[str, Any]
) -> None:
    answer = ask(client, extra_body=form, max_tokens=40, temperature=1).choices[0]
    assert answer.finish_reason == "stop"
    assert re.fullmatch('(red|blue) [0-9]{2}"?', answer.message.content)
    asked = {"prompt": "The colour is", "max_tokens": 40, "temperature": 1}
    (choice,) = shared.json("/v1/completions", asked | form)["choices"]
    assert re.fullmatch('(red|blue) [0-9]{2}"?', choice["text"])


def test_a_guided_schema_is_a_schema(client: Any) -> None:
    schema = {"type": "object", "properties": {"pens": {"type": "boolean"}}, "required": ["pens"]}
    for form in ({"guided_json": schema}, {"structured_outputs": {"json": json.dumps(schema)}}):
        answer = ask(client, extra_body=form, max_tokens=40, temperature=0).choices[0]
        assert isinstance(json.loads(answer.message.content)["pens"], bool)


def test_a_biased_token_is_left_out(client: Any, shared: Server) -> None:
    text = ask(client, temperature=0, max_tokens=1).choices[0].message.content
    tokens = shared.json("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
    other = ask(client, temperature=0, max_tokens=1, logit_bias={str(tokens[0]): -100})
    assert other.choices[0].message.content != text


def test_text_parts_are_joined(client: Any) -> None:
    whole = ask(client, temperature=0)
    words = QUESTION[0]["content"]
    parts = [{"type": "text", "text": words[:9]}, {"type": "text", "text": words[9:]}]
    split = ask(client, temperature=0, messages=[{"role": "user", "content": parts}])
    assert split.choices[0].message.content == whole.choices[0].message.content
    assert split.usage.prompt_tokens == whole.usage.prompt_tokens
