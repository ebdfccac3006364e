"""Does the published client get what follows a text from /v1/completions, and its tokens?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from servers import NAME, Server

from moesaic import LLM, SamplingParams

TEXT = "Once upon a time"


@pytest.fixture(scope="module")
def client(shared: Server) -> Any:
    return shared.client()


@pytest.fixture(scope="module")
def model() -> Iterator[LLM]:
    with LLM(threads=1, accelerator="none") as made:
        yield made


def test_greedy_completions_are_those_of_llm(client: Any, model: LLM) -> None:
    prompts = [TEXT, "The day after Monday is"]
    expected = model.generate(prompts, SamplingParams(max_tokens=8, temperature=0.0))
    answer = client.completions.create(model=NAME, prompt=prompts, max_tokens=8, temperature=0)
    assert [choice.text for choice in answer.choices] == [each.text for each in expected]
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage.prompt_tokens == sum(len(each.prompt_tokens) for each in expected)
    assert answer.usage.completion_tokens == sum(len(each.tokens) for each in expected)


def test_token_ids_are_a_prompt_too(client: Any, shared: Server) -> None:
    tokens = shared.json("/tokenize", {"prompt": TEXT})["tokens"]
    answers = [
        client.completions.create(model=NAME, prompt=each, max_tokens=6, temperature=0)
        for each in (TEXT, tokens, [tokens])
    ]
    assert len({answer.choices[0].text for answer in answers}) == 1


def test_a_stream_has_the_same_text(client: Any) -> None:
    asked = {"model": NAME, "prompt": TEXT, "max_tokens": 8, "temperature": 0}
    whole = client.completions.create(**asked).choices[0].text
    chunks = list(client.completions.create(**asked, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole
    assert chunks[-1].choices[0].finish_reason == "length"
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks[:-1])


def test_logprobs_are_parallel_lists(client: Any) -> None:
    asked = {"model": NAME, "prompt": TEXT, "max_tokens": 5, "temperature": 0, "logprobs": 2}
    choice = client.completions.create(**asked).choices[0]
    known = choice.logprobs
    assert len(known.tokens) == len(known.token_logprobs) == len(known.top_logprobs) == 5
    assert known.text_offset[0] == 0
    assert known.text_offset[1] == len(known.tokens[0])
    for token, logprob, best in zip(
        known.tokens, known.token_logprobs, known.top_logprobs, strict=True
    ):
        assert best[token] == pytest.approx(logprob)
        assert logprob == pytest.approx(max(best.values()))


def test_an_echo_begins_with_the_prompt(client: Any) -> None:
    asked = {"model": NAME, "prompt": TEXT, "max_tokens": 4, "temperature": 0}
    plain = client.completions.create(**asked).choices[0].text
    assert client.completions.create(**asked, echo=True).choices[0].text == TEXT + plain
    streamed = client.completions.create(**asked, echo=True, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == TEXT + plain


def test_each_answer_echoes_its_own_prompt(client: Any) -> None:
    asked = {"model": NAME, "prompt": [TEXT, "The day"], "max_tokens": 2, "n": 2, "temperature": 1}
    choices = client.completions.create(**asked, echo=True).choices
    assert len(choices) == 4
    for choice, prompt in zip(choices, (TEXT, TEXT, "The day", "The day"), strict=True):
        assert choice.text.startswith(prompt)


def test_tokens_become_the_text_again(shared: Server) -> None:
    made = shared.json("/tokenize", {"prompt": TEXT})
    assert made["count"] == len(made["tokens"])
    assert made["max_model_len"] == 1024
    assert shared.json("/detokenize", {"tokens": made["tokens"]})["prompt"] == TEXT


def test_a_conversation_has_the_tokens_that_an_answer_counts(client: Any, shared: Server) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    made = shared.json("/tokenize", {"messages": messages})
    answer = client.chat.completions.create(model=NAME, messages=messages, max_tokens=1)
    assert made["count"] == answer.usage.prompt_tokens


def test_the_model_is_listed(client: Any) -> None:
    (model,) = client.models.list().data
    assert model.id == NAME
    assert client.models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")
