"""Does every request of a batch get the stock model's text, as others join and leave?"""

from __future__ import annotations

import pytest
import torch
from small_llms import LENGTHS, MACHINES, greedy, llm, prompts, stock_greedy

import stock
from moesaic.machines.real.forward_pass import ForwardPass

TOKENS = 10
EVERY = [(name, machine) for name in stock.FAMILIES for machine in MACHINES]


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
