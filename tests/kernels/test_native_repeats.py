"""Do the same bits come back, however often and by however many a layer is computed, and does what
is no number stay where it was?"""

from __future__ import annotations

import pytest
import torch
from native_experts import (
    Layer,
    Way,
    bytes_at,
    every_kernel,
    random_expert,
    random_layer,
)

from made_up import long
from moesaic.kernels.base import Blocks
from moesaic.kernels.native_executor import NativeExecutor
from moesaic.model_info.expert_shape import ExpertShape


@every_kernel
@pytest.mark.parametrize("tokens", [1, 2, 3, 6, 13, 40, 300])
def test_results_do_not_depend_on_who_computes(way: Way, dtype: str, tokens: int) -> None:
    layer = random_layer(way.kernel(ExpertShape(320, 200), dtype), tokens, experts=3, top_k=2)
    alone = layer.computed(NativeExecutor(layer.kernel, 1))
    for threads in (1, 2, 3, 6):
        executor = NativeExecutor(layer.kernel, threads)
        for _ in range(2):
            assert torch.equal(layer.computed(executor), alone)


@every_kernel
def test_nor_on_what_was_computed_before(way: Way, dtype: str) -> None:
    """Calls of few rows share an object, which others come between: more rows and experts, then
    fewer, with a phase of sums and with many tokens."""
    kernel = way.kernel(ExpertShape(320, 200), dtype)
    sizes = [(1, 3, 2), (5, 8, 4), (1, 8, 8), (300, 3, 2), (1, 3, 1), (90, 8, 6), (2, 3, 2)]
    layers = [random_layer(kernel, *size) for size in sizes]
    alone = [layer.computed(NativeExecutor(kernel, 1)) for layer in layers]
    executor = NativeExecutor(kernel, 3)
    for _ in range(2):
        for layer, expected in zip(layers, alone, strict=True):
            assert torch.equal(layer.computed(executor), expected)


@every_kernel
@pytest.mark.parametrize("tokens", [1, long(2), 7, long(9)])
def test_nor_do_wide_experts_that_are_read_in_several_places(
    way: Way, dtype: str, tokens: int
) -> None:
    """2100 inputs: every precision has places, and something that fills none; an odd strip is read
    alone, the others two by two, which is not the same ones with every number of workers."""
    layer = random_layer(way.kernel(ExpertShape(2100, 1100), dtype), tokens, experts=3, top_k=3)
    alone = layer.computed(NativeExecutor(layer.kernel, 1))
    for threads in (2, 5):
        assert torch.equal(layer.computed(NativeExecutor(layer.kernel, threads)), alone)


@every_kernel
def test_few_workers_add_all_experts_of_their_outputs_and_many_one_by_one(
    way: Way, dtype: str
) -> None:
    """Many tokens, wide enough for two ways of sharing; more rows than are computed at once."""
    layer = random_layer(way.kernel(ExpertShape(2112, 24), dtype), 1400, experts=8, top_k=6)
    alone = layer.computed(NativeExecutor(layer.kernel, 1))
    for threads in (2, 8):
        assert torch.equal(layer.computed(NativeExecutor(layer.kernel, threads)), alone)


@every_kernel
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_stays_in_its_token(way: Way, dtype: str, value: float) -> None:
    layer = random_layer(way.kernel(ExpertShape(131, 77), dtype), 20, experts=2, top_k=2)
    executor = NativeExecutor(layer.kernel, 2)
    sound = layer.computed(executor)
    layer.hidden[7, 130] = value
    out = layer.computed(executor)
    assert not bool(out[7].isfinite().any())
    others = torch.arange(20) != 7
    assert torch.equal(out[others], sound[others])


@every_kernel
@pytest.mark.parametrize("value", [1e31, 3e38])
def test_enormous_hidden_states_do_not_vanish(way: Way, dtype: str, value: float) -> None:
    """They overflow, and the result shows it."""
    layer = random_layer(way.kernel(ExpertShape(131, 77), dtype), 20, experts=2, top_k=2)
    layer.hidden[7] = value
    seen = layer.computed(NativeExecutor(layer.kernel, 1)).abs()
    assert not bool((seen[7] < 1e20).any())
    assert float(seen[torch.arange(20) != 7].max()) < 100.0


@every_kernel
@pytest.mark.parametrize("result", [torch.float32, torch.bfloat16, torch.float16])
def test_nothing_is_written_beside_the_result(way: Way, dtype: str, result: torch.dtype) -> None:
    """Nor into blocks and hidden states, nor is anything of what surrounds them read: other bytes
    there, the same result."""
    kernel = way.kernel(ExpertShape(37, 21), dtype)
    tokens, results = 19, []
    needed = kernel.runner(NativeExecutor(kernel, 1).pool).block_bytes
    sizes = {"block": needed, "hidden": tokens * 37 * 4, "out": tokens * 37 * result.itemsize}
    for filler in (0x00, 0xFF):  # as bf16 and fp32: zero, and not a number
        memory = {name: bytes_at(size + 128) for name, size in sizes.items()}
        for part in memory.values():
            part.fill_(filler)
        inside = {name: memory[name][64 : 64 + size] for name, size in sizes.items()}
        weights = random_expert(kernel.shape)
        parts = (weights.gate.data_ptr(), weights.up.data_ptr(), weights.down.data_ptr())
        runner = NativeExecutor(kernel, 2).runner
        runner.pack(*parts, 0, 37, 21, inside["block"].data_ptr())
        hidden = inside["hidden"].view(torch.float32).view(tokens, 37)
        hidden.copy_(torch.linspace(-2, 2, tokens * 37).view(tokens, 37))
        before = {name: memory[name].clone() for name in ("block", "hidden")}
        out = inside["out"].view(result).view(tokens, 37)
        ids, ones = torch.zeros(tokens, 1, dtype=torch.int64), torch.ones(tokens, 1)
        layer = Layer(kernel, Blocks([inside["block"]]), hidden, ids, ones)
        runner.run(layer.call(out))
        for name, old in before.items():
            assert torch.equal(memory[name], old)
        assert bool((memory["out"][:64] == filler).all())
        assert bool((memory["out"][64 + sizes["out"] :] == filler).all())
        results.append(out.clone())
    assert torch.equal(results[0], results[1])
    assert float(results[0].abs().max()) > 0.01
