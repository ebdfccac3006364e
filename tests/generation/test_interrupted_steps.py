"""After a step that was interrupted or failed: can the model go on as if it had not been?"""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from small_llms import MACHINES, greedy, llm, prompts, stock_greedy

import stock
from moesaic import LLM
from moesaic.core.errors import BrokenModel

TOKENS = 5


def fail_once(thing: Any, name: str, error: BaseException, calls: int) -> None:
    """The so many-th call of a method fails after it has done its work."""
    whole, left = getattr(thing, name), iter(range(calls, -1, -1))

    def failing(*args: Any, **named: Any) -> Any:
        result = whole(*args, **named)
        if next(left, None) == 0:
            raise error
        return result

    setattr(thing, name, failing)


def expected(saved: stock.Saved) -> list[list[int]]:
    return [stock_greedy(saved.model, prompt, TOKENS) for prompt in prompts()]


PLACES = [
    ("_route", 4),  # in the second step's layers
    ("start", 5),
    ("offer", 4),
    ("wait", 7),
    ("_finish", 2),
]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("method", "calls"), PLACES)
def test_the_model_goes_on(machine: str, method: str, calls: int) -> None:
    saved, before = stock.saved("mixtral"), threading.enumerate()
    with llm(saved.folder, machine) as model:
        fail_once(model.model.runner.machine.layerwise, method, KeyboardInterrupt(), calls)
        with pytest.raises(KeyboardInterrupt):
            model.generate(prompts(), greedy(TOKENS))
        assert model.model.batcher.idle
        said = model.generate(prompts(), greedy(TOKENS))
    assert [list(one.tokens) for one in said] == expected(saved)
    assert threading.enumerate() == before


@pytest.mark.parametrize("during", ["sampling", "bookkeeping"])
def test_after_the_network_too(during: str) -> None:
    saved = stock.saved("mixtral")
    with llm(saved.folder) as model:
        batcher = model.model.batcher
        if during == "sampling":
            fail_once(batcher._sampler, "sample", KeyboardInterrupt(), 3)
        else:
            fail_once(batcher, "_finish", KeyboardInterrupt(), 1)
        with pytest.raises(KeyboardInterrupt):
            model.generate(prompts(), greedy(TOKENS))
        said = model.generate(prompts(), greedy(TOKENS))
    assert [list(one.tokens) for one in said] == expected(saved)


def test_closing_right_after_an_interruption() -> None:
    before = threading.enumerate()
    model = llm(stock.saved("mixtral").folder, "emulated")
    fail_once(model.model.runner.machine.layerwise, "wait", KeyboardInterrupt(), 4)
    with pytest.raises(KeyboardInterrupt):
        model.generate(prompts(), greedy(TOKENS))
    model.close()
    assert threading.enumerate() == before


def break_token(model: LLM, token: int) -> None:
    """As a damaged checkpoint would: a request with this token gets NaN logits."""
    with torch.inference_mode():
        model.model.runner.decoder.embedding[token] = float("nan")


def test_a_broken_row_fails_alone() -> None:
    saved = stock.saved("mixtral")
    fine = [[1, 2, 3], [4, 5]]
    with llm(saved.folder) as model:
        break_token(model, 96)
        processor, batcher = model.model.input_processor, model.model.batcher
        requests = [processor.request(prompt, greedy(4)) for prompt in (fine[0], [96], fine[1])]
        for request in requests:
            batcher.submit(request)
        while not batcher.idle:
            batcher.step()
        with pytest.raises(BrokenModel, match="1 of 2 sequences"):
            model.generate([[96], [1]], greedy(4))
        with pytest.raises(BrokenModel):
            list(model.stream([96], greedy(4)))
        (after,) = model.generate([fine[0]], greedy(4))
    assert [request.finish_reason for request in requests] == ["length", "cancelled", "length"]
    assert isinstance(requests[1].failure, BrokenModel)
    for request, prompt in zip(requests[::2], fine, strict=True):
        assert list(request.completion().tokens) == stock_greedy(saved.model, prompt, 4)
    assert list(after.tokens) == stock_greedy(saved.model, fine[0], 4)


@pytest.mark.parametrize("machine", ["cpu", "emulated"])
@pytest.mark.parametrize("experts", ["bf16", "int8", "int4"])
def test_a_broken_row_fails_alone_with_any_kernel(experts: str, machine: str) -> None:
    with llm(stock.saved("mixtral").folder, machine, dtype="bf16", expert_dtype=experts) as model:
        (before,) = model.generate([[1, 2, 3]], greedy(4))
        break_token(model, 96)
        with pytest.raises(BrokenModel, match="1 of 2 sequences"):
            model.generate([[96], [1]], greedy(4))
        with pytest.raises(BrokenModel):
            list(model.stream([96], greedy(4)))
        (after,) = model.generate([[1, 2, 3]], greedy(4))
    assert after.tokens == before.tokens
