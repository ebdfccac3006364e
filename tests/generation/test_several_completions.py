"""Do `n` completions of a prompt share its KV, and does each have a seed of its own?"""

from __future__ import annotations

import asyncio

import pytest
from small_llms import greedy, llm, prompts

import stock
from chat_models import talking
from moesaic import LLM, AsyncLLM, SamplingParams
from moesaic.core.errors import ImpossibleSetting

NAME = "mixtral"
(PROMPT,) = prompts((30,))
SEVERAL = SamplingParams(max_tokens=5, seed=11, n=4)
ALONE = SamplingParams(max_tokens=5, seed=11)


def test_they_share_the_prompt_and_differ() -> None:
    """Three slots for four: the fourth begins when one of the others has ended."""
    with llm(stock.saved(NAME).folder, dtype="fp32") as model:
        said = model.generate([PROMPT, PROMPT[:20]], [SEVERAL, greedy(2)])
        stats = model.stats()
    *several, other = said
    assert [one.index for one in said] == [0, 1, 2, 3, 0]
    assert [one.cached_tokens for one in several] == [0, 29, 29, 29]
    assert stats.prompt_tokens == 30 + 3 + 1
    assert len({one.tokens for one in several}) > 1
    assert len(other.tokens) == 2


def test_a_seed_gives_each_the_same_again_and_the_first_what_it_gives_alone() -> None:
    with llm(stock.saved(NAME).folder, dtype="fp32") as model:
        first = model.generate([PROMPT], SEVERAL)
        again = model.generate([PROMPT], SEVERAL)
        (alone,) = model.generate([PROMPT], ALONE)
    assert [one.tokens for one in first] == [one.tokens for one in again]
    assert first[0].tokens == alone.tokens


def test_without_a_seed_each_draws_its_own() -> None:
    with llm(stock.saved(NAME).folder, dtype="fp32") as model:
        said = model.generate([PROMPT], SamplingParams(max_tokens=8, n=3))
    assert len({one.tokens for one in said}) == 3


def test_asynchronously_too() -> None:
    async def ask() -> list[tuple[int, ...]]:
        async with AsyncLLM(stock.saved(NAME).folder, threads=1, dtype="fp32") as model:
            return [one.tokens for one in await model.generate([PROMPT], SEVERAL)]

    with llm(stock.saved(NAME).folder, dtype="fp32") as model:
        expected = [one.tokens for one in model.generate([PROMPT], SEVERAL)]
    assert asyncio.run(ask()) == expected


def test_a_stream_and_a_chat_are_one() -> None:
    with LLM(talking().folder, threads=1) as model:
        for ask in (
            lambda: list(model.stream("Hello", SEVERAL)),
            lambda: model.chat([{"role": "user", "content": "Hello"}], SEVERAL),
        ):
            with pytest.raises(ImpossibleSetting, match="n is 4, but a stream or a chat is one"):
                ask()


@pytest.mark.parametrize(
    ("n", "temperature", "words"),
    [(0, 1.0, "at least 1"), (1025, 1.0, "at most 1024"), (2, 0.0, "would all be the same")],
)
def test_what_makes_no_sense_is_refused(n: int, temperature: float, words: str) -> None:
    with pytest.raises(ImpossibleSetting, match=words):
        SamplingParams(n=n, temperature=temperature)


def test_the_tokenizer_is_the_models_own() -> None:
    messages = [{"role": "user", "content": "Which experts rest?"}]
    with LLM(talking().folder, threads=1) as model:
        tokenizer, stock_one = model.tokenizer, talking().tokenizer
        ids = tokenizer.apply_chat_template(messages)
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        assert tokenizer.decode(tokenizer.encode("Weights")) == "Weights"
    assert ids == stock_one.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    assert text == stock_one.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=False
    )
