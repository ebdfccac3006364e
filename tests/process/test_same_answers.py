"""Does an engine in a process of its own answer as one in this process does, to the bit?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from engines import SAME, engine, greedy, soon, without_times

from moesaic import AsyncLLM, SamplingParams
from moesaic.core.errors import ImpossibleSetting
from moesaic.engine.completion import Chunk

PROMPT = "Once upon a time"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Alan"]}, "age": {"enum": [36, 41]}},
    "required": ["name", "age"],
}
END = 0  # what ends a text where a case says so by `logit_bias` and `stop_token_ids`
CASES: dict[str, SamplingParams] = {
    "greedy": greedy(12),
    "drawn": SamplingParams(max_tokens=12, seed=7),
    "filters": SamplingParams(max_tokens=12, seed=1, top_k=20, top_p=0.9, min_p=0.01),
    "unlimited numbers": SamplingParams(max_tokens=8, seed=-(2**90), top_k=2**70, logprobs=1),
    "penalties": greedy(12, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.5),
    "a stop string": greedy(40, stop=[" king", "zzz"], logprobs=0),
    "a stop string that is cut by the end": greedy(3, stop="death of the"),
    "the chosen token's probability": greedy(6, logprobs=0),
    "alternatives": SamplingParams(max_tokens=6, seed=3, logprobs=4),
    "several": SamplingParams(max_tokens=8, seed=5, n=3, logprobs=1),
    "a schema": SamplingParams(max_tokens=60, seed=4, json_schema=SCHEMA),
    "a schema that is cut": greedy(4, json_schema=SCHEMA),
    "an expression": SamplingParams(max_tokens=30, seed=2, regex="[0-9]{3}-[ab]{2}", logprobs=2),
    "a grammar": greedy(30, grammar='root ::= ("yes" | "no") "!"'),
    "a grammar and a stop string": greedy(30, grammar='root ::= ("yes" | "no") "!"', stop="o!"),
    "an end": greedy(9, stop_token_ids=[END], logit_bias={END: 100.0}),
    "an end that comes later": greedy(
        9, stop_token_ids=[END], logit_bias={END: 100.0}, min_tokens=4
    ),
    "an end that is ignored": SamplingParams(max_tokens=30, seed=2, ignore_eos=True),
    "more tokens than fit": SamplingParams(max_tokens=10**30, seed=2, min_tokens=3, stop="e"),
}


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[AsyncLLM, AsyncLLM]]:
    here, there = engine(False, **SAME), engine(**SAME)
    yield here, there
    asyncio.run(here.close())
    asyncio.run(there.close())


Both = tuple[AsyncLLM, AsyncLLM]


@pytest.mark.parametrize("case", CASES)
def test_completions(engines: Both, case: str) -> None:
    here, there = (soon(model.generate([PROMPT], CASES[case])) for model in engines)
    assert without_times(here) == without_times(there)
    reasons = {
        "a stop string": "stop", "a schema": "stop", "a schema that is cut": "incomplete",
        "a grammar": "stop", "an end": "stop", "greedy": "length", "more tokens than fit": "stop",
    }  # fmt: skip
    assert there[0].finish_reason == reasons.get(case, there[0].finish_reason)


@pytest.mark.parametrize("case", ["a stop string", "an expression", "an end", "alternatives"])
def test_chunks(engines: Both, case: str) -> None:
    async def listen(model: AsyncLLM) -> list[Chunk]:
        return [chunk async for chunk in model.stream(PROMPT, CASES[case])]

    here, there = (soon(listen(model)) for model in engines)
    assert here == there
    assert there[-1].finish_reason is not None


def test_conversations(engines: Both) -> None:
    asked = [{"role": "user", "content": "What is 3 + 4?"}]

    async def answer(model: AsyncLLM) -> Any:
        chunks = [chunk async for chunk in model.stream_chat(asked, greedy(20))]
        return without_times([await model.chat(asked, greedy(20))]), chunks

    here, there = (soon(answer(model)) for model in engines)
    assert here == there


def test_many_at_once_in_the_order_of_the_prompts(engines: Both) -> None:
    prompts: list[Any] = [PROMPT, [5, 6, 7], "The day after Monday is", "Weights", "a", [1]]
    params = [*list(CASES.values())[:5], greedy(5)]
    here, there = (soon(model.generate(prompts, params)) for model in engines)
    assert without_times(here) == without_times(there)


@pytest.mark.parametrize("prompt", ["", [10**9], [-1], [1] * 100_000])
def test_what_is_wrong_is_said_alike(engines: Both, prompt: Any) -> None:
    said: list[str] = []
    for model in engines:
        with pytest.raises(ImpossibleSetting) as caught:
            soon(model.generate([prompt, [1]] if prompt else [[]]))
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_tokens_are_counted(engines: Both) -> None:
    before = [model.stats() for model in engines]
    for model in engines:
        soon(model.generate([[1, 2, 3]], greedy(5)))
    new = [
        (after.prompt_tokens - old.prompt_tokens, after.generated_tokens - old.generated_tokens)
        for after, old in zip((model.stats() for model in engines), before, strict=True)
    ]
    assert new == [(3, 5), (3, 5)]


def test_what_only_one_of_them_has(engines: Both) -> None:
    here, there = engines
    assert here.model.batcher.idle
    with pytest.raises(ImpossibleSetting, match="in the engine's process"):
        _ = there.model
    with pytest.raises(ImpossibleSetting, match="process=True"):
        soon(here.restart())
    ids = there.tokenizer.encode(PROMPT)
    assert ids == here.tokenizer.encode(PROMPT)
