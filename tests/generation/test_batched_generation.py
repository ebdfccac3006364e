"""Does every request of a batch get the stock model's text, as others join and leave?"""

from __future__ import annotations

from random import Random
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from no_network import VOCABULARY, NoNetwork
from small_llms import LENGTHS, MACHINES, greedy, llm, prompts, stock_greedy

import stock
from made_up import in_turns
from moesaic import LLM, SamplingParams
from moesaic.core.errors import ImpossibleSetting
from moesaic.engine.batcher import Batcher
from moesaic.engine.completion import Completion
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.request import Request
from moesaic.engine.submitted_step import Scheduled
from moesaic.machines.real.forward_pass import ForwardPass

TOKENS = 10
EVERY = in_turns([*stock.FAMILIES], [*MACHINES])


@pytest.mark.parametrize(("name", "machine"), EVERY)
def test_the_stock_models_greedy_text(name: str, machine: str) -> None:
    saved = stock.saved(name)
    with llm(saved.folder, machine) as model:
        said = model.generate(prompts(), greedy(TOKENS))
        stats = model.stats()
    assert [list(one.tokens) for one in said] == [
        stock_greedy(saved.model, prompt, TOKENS) for prompt in prompts()
    ]
    assert [list(one.prompt_tokens) for one in said] == prompts()
    assert {one.finish_reason for one in said} == {"length"}
    assert stats.prompt_tokens == sum(LENGTHS)
    assert stats.generated_tokens == TOKENS * len(LENGTHS)


@pytest.mark.parametrize("system", ["hybrimoe", "ktransformers", "adapmoe"])
def test_systems_say_the_same(system: str) -> None:
    saved = stock.saved("mixtral")
    with llm(saved.folder, "emulated", system=system, cache_ratio=0.5) as model:
        said = model.generate(prompts(), greedy(TOKENS))
    expected = [stock_greedy(saved.model, prompt, TOKENS) for prompt in prompts()]
    assert [list(one.tokens) for one in said] == expected


def test_steps_are_shared() -> None:
    """Three at once: far fewer steps than tokens, and never more tokens than a step may have."""
    saved = stock.saved("mixtral")
    with llm(saved.folder) as model:
        seen: list[int] = []
        forward = model.model.runner.step

        def spy(work: ForwardPass) -> torch.Tensor:
            seen.append(len(work.numbers))
            return forward(work)

        model.model.runner.step = spy  # type: ignore[method-assign]
        model.generate(prompts(), greedy(TOKENS))
    total = sum(LENGTHS) + (TOKENS - 1) * len(LENGTHS)  # the last token of each is not fed
    assert sum(seen) == total
    assert max(seen) == 7
    assert len(seen) < total / 2


def test_a_long_prompt_does_not_stall_decoding() -> None:
    """While it is read, the one that writes gets a token in every step."""
    saved = stock.saved("mixtral")
    with llm(saved.folder, max_step_tokens=4) as model:
        batcher, processor = model.model.batcher, model.model.input_processor
        writer = processor.request([1], greedy(30))
        batcher.submit(writer)
        batcher.step()
        reader = processor.request(prompts((40,))[0], greedy(1))
        later = processor.request([2, 3], greedy(1))
        batcher.submit(reader)
        batcher.submit(later)
        order = []
        while reader.finish_reason is None or later.finish_reason is None:
            updates = batcher.step()
            assert writer in [request for request, _ in updates]
            order += [request for request, _ in updates if request is not writer]
    assert order == [reader, later]  # first come, first served
    assert len(writer.sampled) == 1 + 14  # 40 prompt tokens, three per step, then two more


def test_more_sequences_than_tokens_in_a_step() -> None:
    """Everybody gets on even where a step has fewer tokens than there are places."""
    saved = stock.saved("mixtral")
    with llm(saved.folder, max_step_tokens=2, max_sequences=5) as model:
        said = model.generate(prompts(), greedy(4))
    expected = [stock_greedy(saved.model, prompt, 4) for prompt in prompts()]
    assert [list(one.tokens) for one in said] == expected


def test_a_cancelled_request_frees_its_slot() -> None:
    saved = stock.saved("mixtral")
    with llm(saved.folder, max_sequences=1) as model:
        batcher, processor = model.model.batcher, model.model.input_processor
        first, second, third = (processor.request([n], greedy(5)) for n in (1, 2, 3))
        for request in (first, second, third):
            batcher.submit(request)
        batcher.step()
        batcher.cancel(first)
        batcher.cancel(third)  # which has not begun
        while not batcher.idle:
            batcher.step()
        batcher.cancel(first)  # nothing happens
    assert [r.finish_reason for r in (first, second, third)] == ["cancelled", "length", "cancelled"]
    assert list(second.completion().tokens) == stock_greedy(saved.model, [2], 5)
    assert len(first.completion().tokens) == 1
    assert third.completion().timings.time_to_first_token_s is None


# With `batch_invariant`: has an answer the same bits alone and beside any other requests?


class Watched(Batcher):
    """Notes the steps of every request: how many tokens after how many."""

    def __init__(self, sampler: Any, **options: Any) -> None:
        super().__init__(NoNetwork(), sampler, **options)  # type: ignore[arg-type]
        self.counter = MagicMock()
        self.steps: dict[Request, list[tuple[int, int]]] = {}
        self.sizes: set[int] = set()  # requests of a step

    def _schedule(self) -> list[Scheduled]:
        scheduled = super()._schedule()
        self.sizes.add(len(scheduled))
        for request, count in scheduled:
            self.steps.setdefault(request, []).append((request.computed_tokens, count))
        return scheduled

    def run(self, arriving: dict[int, list[Request]]) -> dict[Request, list[tuple[int, int]]]:
        """Requests arrive before the step of that number."""
        number = 0
        while arriving or not self.idle:
            for request in arriving.pop(number, ()):
                self.submit(request)
            self.step()
            number += 1
        return self.steps


def test_a_requests_steps_are_its_own_in_any_batch() -> None:
    random = Random(1)
    with llm(stock.saved("mixtral").folder) as model:
        processor, sampler = model.model.input_processor, model.model.batcher._sampler

        def request(prompt: list[int], tokens: int) -> Request:
            return processor.request(prompt, SamplingParams(max_tokens=tokens, temperature=0.0))

        for _ in range(300):
            options = {
                "sequences": random.randint(1, 4),
                "max_step_tokens": random.choice([4, 7, 16]),
                "batch_invariant": True,
            }
            asked = [
                ([random.randrange(VOCABULARY) for _ in range(random.randint(1, 20))],
                 random.randint(1, 4))
                for _ in range(random.randint(2, 4))
            ]  # fmt: skip
            arriving: dict[int, list[Request]] = {}
            together = [request(*each) for each in asked]
            for one in together:
                arriving.setdefault(random.randint(0, 6), []).append(one)
            batcher = Watched(sampler, **options)
            found = batcher.run(arriving)
            assert batcher.sizes == {1}, "one request in every step"
            for one, each in zip(together, asked, strict=True):
                single = request(*each)
                assert found[one] == Watched(sampler, **options).run({0: [single]})[single]
                assert one.completion().tokens == single.completion().tokens


def bits(answer: Completion) -> list[tuple[int, float | None]]:
    return [(token.token, token.logprob) for token in answer.logprobs or ()]


@pytest.mark.parametrize(
    ("family", "dtypes"),
    [
        ("mixtral", {"dtype": "bf16"}),
        ("deepseek-v2", {"dtype": "fp16", "expert_dtype": "int8"}),
    ],
)
def test_answers_to_the_bit(family: str, dtypes: dict[str, Any]) -> None:
    random = Random(2)
    asked = [
        [random.randrange(VOCABULARY) for _ in range(random.randint(1, 12))] for _ in range(30)
    ]
    params = [
        SamplingParams(max_tokens=3, temperature=random.choice([0.0, 0.9]), seed=at, logprobs=1)
        for at in range(len(asked))
    ]
    options = {"batch_invariant": True, "max_sequences": 8, "max_step_tokens": 5} | dtypes
    with llm(stock.saved(family).folder, **options) as model:
        together = model.generate(asked, params)
        for prompt, each, one in zip(asked, params, together, strict=True):
            (alone,) = model.generate([prompt], each)
            assert bits(one) == bits(alone)
            assert bits(one), "log-probabilities were asked for"


def test_blocks_begin_at_the_same_place_of_a_cache_line() -> None:
    options: dict[str, Any] = {"max_model_len": 37, "max_sequences": 3}
    with llm(stock.saved("mixtral").folder, batch_invariant=True, **options) as model:
        cache = model.model.runner.cache
        places = {block.data_ptr() % 64 for block in cache.first[0]}
    assert len(cache.first[0]) == 3
    assert len(places) == 1


@pytest.mark.parametrize("accelerator", ["emulated"])
def test_placement_follows_other_requests(accelerator: str) -> None:
    with pytest.raises(ImpossibleSetting, match="depends on what other requests used"):
        EngineSettings(batch_invariant=True, accelerator=accelerator)
    with pytest.raises(ImpossibleSetting, match="True or False"):
        LLM(stock.saved("mixtral").folder, batch_invariant="yes")  # type: ignore[arg-type]
