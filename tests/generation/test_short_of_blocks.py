"""Where all requests together have more tokens than the KV cache: does every one get its text?"""

from __future__ import annotations

import logging
from typing import Any

import pytest
from small_llms import MACHINES, greedy, llm, prompts

import stock
from moesaic.core.errors import ImpossibleSetting, Overloaded
from moesaic.engine.request import Request
from moesaic.model_info.kv_blocks import KV_BLOCK

SEVERAL = prompts((50, 40, 60, 30, 55))
SHORT: dict[str, Any] = {"max_sequences": 4, "max_model_len": 192, "kv_tokens": 6 * KV_BLOCK}


@pytest.mark.parametrize("family", ["mixtral", "deepseek-v2", "gpt-oss", "qwen3-next"])
def test_requests_make_room_for_each_other(family: str) -> None:
    """Four run at once, and each grows to three blocks: there are six."""
    folder = stock.saved(family).folder
    with llm(folder, dtype="fp32", max_sequences=4, max_model_len=192) as model:
        alone = [model.generate([prompt], greedy(120))[0].tokens for prompt in SEVERAL]
    with llm(folder, dtype="fp32", **SHORT) as model:
        said = model.generate(SEVERAL, greedy(120))
        queue, blocks = model.stats().queue, model.stats().blocks
    assert [one.tokens for one in said] == alone
    assert queue.preemptions > 0
    assert (queue.running, queue.waiting, queue.begun) == (0, 0, 5)
    assert blocks.total == 6


@pytest.mark.parametrize("machine", MACHINES)
def test_on_every_machine(machine: str) -> None:
    folder = stock.saved("mixtral").folder
    with llm(folder, machine, dtype="fp32", **SHORT) as model:
        said = model.generate(SEVERAL, greedy(120))
        assert model.stats().queue.preemptions > 0
    with llm(folder, machine, dtype="fp32", **(SHORT | {"kv_tokens": 1024})) as model:
        assert [one.tokens for one in model.generate(SEVERAL, greedy(120))] == [
            one.tokens for one in said
        ]
        assert model.stats().queue.preemptions == 0


@pytest.mark.parametrize("family", ["mixtral", "deepseek-v2", "gpt-oss", "qwen3-next"])
def test_prefixes_come_back_from_main_memory(family: str) -> None:
    """An emulated accelerator has blocks for one and a half of these prompts."""
    folder, options = stock.saved(family).folder, {"dtype": "fp32", "max_model_len": 192}
    asked = [*prompts((150, 140, 130)) * 2]
    with llm(folder, "emulated", **options) as model:
        alone = [model.generate([prompt], greedy(20))[0].tokens for prompt in asked]
    short: dict[str, Any] = {"max_step_tokens": 64, "kv_tokens": 4 * KV_BLOCK, "kv_host_gb": 0.01}
    with llm(folder, "emulated", **(options | short)) as model:
        for prompt, expected in zip(asked, alone, strict=True):
            assert model.generate([prompt], greedy(20))[0].tokens == expected
        blocks, cached = model.stats().blocks, model.stats().cached_tokens
    assert blocks.loaded_tokens >= 2 * KV_BLOCK
    assert cached >= 3 * KV_BLOCK
    assert 0 < blocks.copies <= blocks.most_copies


def test_requests_that_made_room_go_on_with_blocks_from_main_memory() -> None:
    folder = stock.saved("mixtral").folder
    with llm(folder, "emulated", dtype="fp32", max_model_len=192) as model:
        alone = [model.generate([prompt], greedy(120))[0].tokens for prompt in SEVERAL]
    with llm(folder, "emulated", dtype="fp32", kv_host_gb=0.01, **SHORT) as model:
        said = model.generate(SEVERAL, greedy(120))
        queue, blocks = model.stats().queue, model.stats().blocks
    assert [one.tokens for one in said] == alone
    assert queue.preemptions > 0
    assert blocks.loaded_tokens > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, r"there is none.*use kv_tokens"),
        ({"accelerator": "emulated", "prefix_cache": False}, "leave out one of the two"),
        ({"accelerator": "emulated", "kv_host_gb": -1}, "must be 0 or above"),
    ],
)
def test_main_memory_for_prefixes_that_cannot_be_used_is_refused(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ImpossibleSetting, match=words):
        llm(stock.saved("mixtral").folder, **({"kv_host_gb": 1.0} | options))


@pytest.mark.parametrize("gate", ["big-little:k=1,gamma=0.5", "self-speculative:k=1"])
def test_under_a_gate(gate: str) -> None:
    """Where few experts write entries, reading them again would make others: such requests get
    blocks for all they may say."""
    folder = stock.saved("mixtral").folder
    with llm(folder, dtype="fp32", gate=gate, **SHORT) as model:
        said = model.generate(SEVERAL, greedy(120))
        preempted = model.stats().queue.preemptions
    with llm(folder, dtype="fp32", gate=gate, **(SHORT | {"kv_tokens": 1024})) as model:
        alone = [model.generate([prompt], greedy(120))[0].tokens for prompt in SEVERAL]
    assert [one.tokens for one in said] == alone
    assert preempted == 0 or gate.startswith("self")


def test_batch_invariant_answers_are_the_same_bits_where_blocks_are_short() -> None:
    folder, params = stock.saved("mixtral").folder, greedy(120, logprobs=1)
    with llm(folder, batch_invariant=True, **SHORT) as model:
        said = model.generate(SEVERAL, params)
        alone = [model.generate([prompt], params)[0] for prompt in SEVERAL]
    assert [one.logprobs for one in said] == [one.logprobs for one in alone]


def test_a_cache_shorter_than_a_sequence_is_refused() -> None:
    with pytest.raises(ImpossibleSetting, match=r"--kv-tokens 128 or more, or --max-model-len 64"):
        llm(stock.saved("mixtral").folder, max_model_len=128, kv_tokens=64)


def order_of(requests: list[tuple[str, int]], **options: Any) -> list[int]:
    """In which order requests of these clients and priorities begin, one at a time."""
    options |= {"max_sequences": 1, "prefix_cache": False}
    with llm(stock.saved("mixtral").folder, **options) as model:
        batcher, processor = model.model.batcher, model.model.input_processor
        made: list[Request] = []
        for client, priority in requests:
            request = processor.request(SEVERAL[0], greedy(3))
            request.client, request.priority = client, priority
            made.append(request)
            batcher.submit(request)
        while not batcher.idle:
            batcher.step()
    return sorted(range(len(made)), key=lambda number: made[number].started_ns or 0)


def test_a_client_with_many_requests_does_not_hold_up_others() -> None:
    assert order_of([("one", 0)] * 4 + [("two", 0)] * 2) == [0, 4, 1, 5, 2, 3]


def test_a_higher_priority_comes_first() -> None:
    assert order_of([("", 0), ("", 0), ("", 2), ("", 1)]) == [2, 3, 0, 1]


@pytest.mark.parametrize("limits", [{"max_queue": 2}, {"max_queue_tokens": 120}])
def test_a_full_queue_refuses(limits: dict[str, Any]) -> None:
    with llm(stock.saved("mixtral").folder, **limits) as model:
        batcher, processor = model.model.batcher, model.model.input_processor
        for _ in range(2):
            batcher.submit(processor.request(SEVERAL[0], greedy(3)))
        with pytest.raises(Overloaded, match=f"{next(iter(limits))}\\). Ask again"):
            batcher.submit(processor.request(SEVERAL[0], greedy(3)))
        batcher.step()
        batcher.submit(processor.request(SEVERAL[0], greedy(3)))
        batcher.cancel_all()
        assert model.stats().queue.waiting_tokens == 0


def test_the_log_says_where_a_prompt_leaves_what_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    first = SEVERAL[2]
    other = [*first[:33], (first[33] + 1) % 90, *first[34:]]
    with (
        caplog.at_level(logging.INFO, "moesaic.kv"),
        llm(stock.saved("mixtral").folder) as model,
    ):
        model.generate([first], greedy(2))
        assert not caplog.messages
        model.generate([other], greedy(2))
    (said,) = caplog.messages
    assert "33 of 60 tokens of its prompt are in the KV cache; token 33 differs" in said
    assert said.endswith(f"{other[33]} instead of {first[33]}")
