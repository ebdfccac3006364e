"""With a KV cache in int8, is a text the same, whatever else runs and however it is read?"""

from __future__ import annotations

from typing import Any

import pytest
from small_llms import MACHINES, greedy, llm, prompts

import stock
from moesaic.core.errors import UnknownName
from moesaic.model_info.kv_blocks import KV_BLOCK

INT8: dict[str, Any] = {"dtype": "fp32", "kv_dtype": "int8", "max_model_len": 192}
SEVERAL = prompts((50, 40, 60))
# One of each kind of attention: grouped, latent, with windows, linear.
FAMILIES = ("mixtral", "deepseek-v2", "gpt-oss", "qwen3-next")


@pytest.mark.parametrize("family", FAMILIES)
def test_alone_together_in_pieces_and_after_making_room(family: str) -> None:
    """Also from a kept prefix: each text is asked twice."""
    folder = stock.saved(family).folder
    with llm(folder, **INT8, max_step_tokens=64, prefix_cache=False) as model:
        alone = [model.generate([prompt], greedy(80))[0].tokens for prompt in SEVERAL]
    with llm(folder, **INT8, kv_tokens=6 * KV_BLOCK) as model:
        for _ in range(2):
            said = model.generate(SEVERAL, greedy(80))
            assert [one.tokens for one in said] == alone
        stats = model.stats()
    assert stats.queue.preemptions > 0
    assert stats.cached_tokens > 0


@pytest.mark.parametrize("family", ["mixtral", "deepseek-v2"])
def test_from_main_memory(family: str) -> None:
    """An emulated accelerator has blocks for one and a half of these prompts."""
    folder, asked = stock.saved(family).folder, [*prompts((150, 140)) * 2]
    with llm(folder, **INT8) as model:
        alone = [model.generate([prompt], greedy(10))[0].tokens for prompt in asked]
    short: dict[str, Any] = {"max_step_tokens": 64, "kv_tokens": 4 * KV_BLOCK, "kv_host_gb": 0.01}
    with llm(folder, "emulated", **INT8, **short) as model:
        said = [model.generate([prompt], greedy(10))[0].tokens for prompt in asked]
        assert model.stats().blocks.loaded_tokens >= 2 * KV_BLOCK
    assert said == alone


@pytest.mark.parametrize("gate", ["big-little:k=1,gamma=0.5", "self-speculative:k=1"])
def test_under_a_gate_that_takes_tokens_back(gate: str) -> None:
    folder = stock.saved("mixtral").folder
    with llm(folder, **INT8, gate=gate) as model:
        alone = [model.generate([prompt], greedy(30))[0].tokens for prompt in SEVERAL]
        assert [one.tokens for one in model.generate(SEVERAL, greedy(30))] == alone
    if gate.startswith("self"):  # drafts never change a text
        with llm(folder, **INT8) as model:
            assert [one.tokens for one in model.generate(SEVERAL, greedy(30))] == alone


@pytest.mark.parametrize("machine", MACHINES)
def test_an_unknown_precision_is_refused(machine: str) -> None:
    with pytest.raises(UnknownName, match="int8"):
        llm(stock.saved("mixtral").folder, machine, kv_dtype="int9")
