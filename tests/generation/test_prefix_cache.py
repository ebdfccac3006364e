"""Is what the KV cache holds already not read again, and is the text the same as without?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from small_llms import MACHINES, greedy, llm, prompts, stock_greedy

import stock
from chat_models import talking
from moesaic import LLM, AsyncLLM, SamplingParams
from moesaic.core.errors import BrokenModel, ImpossibleSetting
from moesaic.machines.real.forward_pass import ForwardPass, Piece

NAME = "mixtral"
SHARED, OTHER = prompts((40, 40))
FP32: dict[str, Any] = {"dtype": "fp32"}


@contextmanager
def counted(**options: Any) -> Iterator[tuple[LLM, list[int]]]:
    """A model, and how many tokens each of its passes has had."""
    machine = options.pop("machine", "cpu")
    with llm(stock.saved(NAME).folder, machine, **FP32, **options) as model:
        yield model, passes_of(model)


def passes_of(model: LLM | AsyncLLM) -> list[int]:
    seen: list[int] = []
    step = model.model.runner.step

    def spy(work: ForwardPass) -> torch.Tensor:
        seen.append(len(work.numbers))
        return step(work)

    model.model.runner.step = spy  # type: ignore[method-assign]
    return seen


def stock_text(prompt: list[int], tokens: int) -> list[int]:
    return stock_greedy(stock.saved(NAME).model, prompt, tokens)


def test_a_chat_of_three_turns_reads_what_is_new() -> None:
    params, said = greedy(6), []
    with LLM(talking().folder, threads=1, max_sequences=1, **FP32) as model:
        messages: list[dict[str, str]] = []
        before = 0
        for text in ("Which experts rest while others work?", "And why is that so?", "Thanks"):
            messages.append({"role": "user", "content": text})
            said.append(model.chat(messages, params))
            messages.append({"role": "assistant", "content": said[-1].text or ""})
            stats = model.stats()
            read, before = stats.prompt_tokens - before, stats.prompt_tokens
            assert read == len(said[-1].prompt_tokens) - said[-1].cached_tokens
        assert stats.cached_tokens == sum(one.cached_tokens for one in said)
    first, second, third = said
    assert first.cached_tokens == 0
    # All of the turn before but the end of its answer, whose text may be split otherwise.
    assert second.cached_tokens >= len(first.prompt_tokens)
    assert third.cached_tokens >= len(second.prompt_tokens)
    with LLM(talking().folder, threads=1, max_sequences=1, prefix_cache=False, **FP32) as model:
        again = [model.generate([list(one.prompt_tokens)], params)[0] for one in said]
        assert model.stats().cached_tokens == 0
    assert [one.tokens for one in again] == [one.tokens for one in said]


@pytest.mark.parametrize("machine", MACHINES)
def test_requests_that_begin_alike_read_it_once(machine: str) -> None:
    """At the same time, in slots of their own: the others wait until the first has read it."""
    several = [[*SHARED, *end] for end in ([1, 2, 3], [4], [5, 6])]
    with counted(machine=machine) as (model, passes):
        said = model.generate(several, greedy(8))
        stats = model.stats()
    assert [list(one.tokens) for one in said] == [stock_text(prompt, 8) for prompt in several]
    assert [one.cached_tokens for one in said] == [0, 40, 40]
    assert stats.prompt_tokens == 43 + 1 + 2
    assert sum(passes) == stats.prompt_tokens + 3 * 7
    assert stats.cached_tokens == 80


def test_a_prompt_asked_again_reads_its_last_token() -> None:
    with counted(max_sequences=2) as (model, passes):
        first, second = (model.generate([SHARED], greedy(5))[0] for _ in range(2))
    assert first.tokens == second.tokens == tuple(stock_text(SHARED, 5))
    assert (first.cached_tokens, second.cached_tokens) == (0, 39)
    assert sum(passes) == 40 + 4 + 1 + 4


def test_what_was_generated_is_kept_too() -> None:
    with counted(max_sequences=1) as (model, _):
        (first,) = model.generate([SHARED], greedy(8))
        longer = [*SHARED, *first.tokens, 9, 9]
        (second,) = model.generate([longer], greedy(4))
        assert model.stats().kept_tokens == len(longer) + 3  # the last token was not fed
    assert second.cached_tokens == 40 + 7
    assert list(second.tokens) == stock_text(longer, 4)


def test_short_prefixes_are_read_again() -> None:
    with counted(max_sequences=1) as (model, _):
        model.generate([SHARED], greedy(2))
        (said,) = model.generate([[*SHARED[:15], *OTHER]], greedy(2))
        assert said.cached_tokens == 0
        (said,) = model.generate([[*SHARED[:15], *OTHER[:10], *SHARED]], greedy(2))
        assert said.cached_tokens == 25


def test_the_least_recently_used_is_evicted() -> None:
    """Two slots, three texts: what is kept never exceeds the KV cache that was planned."""
    texts = prompts((40, 40, 40))
    with counted(max_sequences=2, max_model_len=64) as (model, _):
        slots = model.model.plan.capacity
        cached = []
        for number in (0, 1, 0, 2, 0, 1):
            cached.append(model.generate([texts[number]], greedy(2))[0].cached_tokens)
            assert model.stats().kept_tokens <= slots.sequences * slots.length
    assert cached == [0, 0, 39, 0, 39, 0]


def test_a_short_prefix_of_a_long_text_leaves_the_text_there() -> None:
    """It is copied while there is another slot; the conversation can go on."""
    text = [*SHARED, *OTHER]
    with counted(max_sequences=2) as (model, _):
        model.generate([text], greedy(2))
        (said,) = model.generate([[*SHARED[:20], 7]], greedy(6))
        assert said.cached_tokens == 20
        assert list(said.tokens) == stock_text([*SHARED[:20], 7], 6)
        (said,) = model.generate([[*text, 7]], greedy(6))
        assert said.cached_tokens == 80
    assert list(said.tokens) == stock_text([*text, 7], 6)


def test_a_cancelled_request_leaves_what_it_computed() -> None:
    with counted(max_sequences=1) as (model, _):
        batcher, processor = model.model.batcher, model.model.input_processor
        request = processor.request(SHARED, greedy(9))
        batcher.submit(request)
        for _ in range(4):  # steps of seven tokens
            batcher.step()
        batcher.cancel(request)
        (said,) = model.generate([SHARED], greedy(4))
    assert said.cached_tokens == 28
    assert list(said.tokens) == stock_text(SHARED, 4)


def test_the_source_may_be_cancelled_before_it_is_read() -> None:
    with counted() as (model, _):
        batcher, processor = model.model.batcher, model.model.input_processor
        first, second = (processor.request([*SHARED, end], greedy(4)) for end in (1, 2))
        batcher.submit(first)
        batcher.submit(second)
        for _ in range(3):
            batcher.step()
        batcher.cancel(first)
        while not batcher.idle:
            batcher.step()
    assert second.cached_tokens == 21
    assert list(second.completion().tokens) == stock_text([*SHARED, 2], 4)


def test_an_interrupted_answer_is_kept_and_a_failed_one_is_not() -> None:
    with counted(max_sequences=1) as (model, _):
        batcher, runner = model.model.batcher, model.model.runner
        step = runner.step
        for error, cached in ((KeyboardInterrupt(), 39), (RuntimeError(), 0)):
            batcher.forget()
            if cached:
                model.generate([SHARED], greedy(1))

            def fail(work, error=error):  # type: ignore[no-untyped-def]
                step(work)
                raise error

            runner.step = fail  # type: ignore[method-assign]
            with pytest.raises(type(error)):
                model.generate([SHARED], greedy(3))
            runner.step = step  # type: ignore[method-assign]
            assert batcher.idle
            (said,) = model.generate([SHARED], greedy(4))
            assert (said.cached_tokens, list(said.tokens)) == (cached, stock_text(SHARED, 4))


def test_what_is_kept_outlives_the_use_of_slots_by_others() -> None:
    """Measurements use the runner's slots themselves, between requests."""
    with counted(max_sequences=1) as (model, _):
        model.generate([SHARED], greedy(4))
        runner = model.model.runner
        runner.step(ForwardPass([Piece(0, OTHER[:20])]))
        runner.free_slot(0)
        (said,) = model.generate([SHARED], greedy(4))
    assert said.cached_tokens == 39
    assert list(said.tokens) == stock_text(SHARED, 4)


@pytest.mark.parametrize(
    ("gate", "kept"),
    [("little:k=1", 40), ("big-little:k=1,gamma=0.5", 40), ("self-speculative:k=1", 48)],
)
def test_tokens_that_few_experts_wrote_are_read_again(gate: str, kept: int) -> None:
    """A prompt is read with all experts, so entries of fewer are not those it would have. What a
    gate has drafted and checked is the whole model's."""
    with counted(max_sequences=1, gate=gate) as (model, _):
        (first,) = model.generate([SHARED], greedy(9))
        longer = [*SHARED, *first.tokens, 9, 9]
        (second,) = model.generate([longer], greedy(6))
    assert second.cached_tokens == kept
    with counted(max_sequences=1, gate=gate, prefix_cache=False) as (model, _):
        (alone,) = model.generate([longer], greedy(6))
    assert alone.tokens == second.tokens


def test_equal_pieces_give_equal_bits() -> None:
    """A prefix that ends where a piece of the prompt ends: the same products as without."""
    text, params = [*OTHER, *SHARED[:9]], greedy(3, logprobs=5)
    with counted(max_sequences=1, max_step_tokens=20) as (model, _):
        (whole,) = model.generate([text], params)
        model.model.batcher.forget()
        model.generate([[*OTHER, 3]], greedy(1))  # which ends after two pieces
        (said,) = model.generate([text], params)
    assert said.cached_tokens == 40
    assert said.logprobs == whole.logprobs


def test_a_recording_has_whole_documents(tmp_path: Path) -> None:
    with counted(max_sequences=1, record=tmp_path / "a.moet") as (model, _):
        said = [model.generate([SHARED], greedy(2))[0] for _ in range(2)]
    assert [one.cached_tokens for one in said] == [0, 0]


def test_a_request_whose_logits_are_no_numbers_leaves_nothing() -> None:
    with counted(max_sequences=1) as (model, _):
        runner = model.model.runner
        step = runner.step
        runner.step = lambda *asked: step(*asked) * float("nan")  # type: ignore[method-assign]
        with pytest.raises(BrokenModel):
            model.generate([SHARED], greedy(2))
        runner.step = step  # type: ignore[method-assign]
        (said,) = model.generate([SHARED], greedy(2))
    assert said.cached_tokens == 0


def test_batch_invariant_generation_reuses_nothing() -> None:
    """How a prompt is cut into pieces must not depend on what came before."""
    with counted(batch_invariant=True) as (model, _):
        said = [*model.generate([SHARED, SHARED], greedy(2)), *model.generate([SHARED], greedy(2))]
    assert [one.cached_tokens for one in said] == [0, 0, 0]


def test_clients_of_one_model_share() -> None:
    async def talk() -> list[int]:
        async with AsyncLLM(stock.saved(NAME).folder, threads=1, **FP32) as model:
            said = await asyncio.gather(
                *(model.generate([*SHARED, end], greedy(4)) for end in range(3))
            )
            for end, (one,) in enumerate(said):
                assert list(one.tokens) == stock_text([*SHARED, end], 4)
            return [one.cached_tokens for (one,) in said]

    assert asyncio.run(talk()) == [0, 40, 40]


def test_the_setting_is_true_or_false() -> None:
    with pytest.raises(ImpossibleSetting, match="either true or false"):
        llm(stock.saved(NAME).folder, prefix_cache="no")


def test_seeds_draw_the_same_with_a_shared_prefix() -> None:
    params = [SamplingParams(max_tokens=6, seed=seed) for seed in (1, 2)]
    with counted() as (model, _):
        together = model.generate([SHARED, SHARED], params)
    with counted(prefix_cache=False) as (model, _):
        alone = [model.generate([SHARED], each)[0] for each in params]
    assert [one.tokens for one in together] == [one.tokens for one in alone]
