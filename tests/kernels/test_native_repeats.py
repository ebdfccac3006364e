"""Do the same bits come back, however often and by however many a layer is computed, and does what
is no number stay where it was?"""

from __future__ import annotations

import pytest
import torch
from expected_experts import expected_layer
from hypothesis import given, settings
from hypothesis import strategies as st
from native_experts import (
    WAYS,
    Layer,
    Way,
    bytes_at,
    every_kernel,
    every_way,
    normal,
    packed,
    random_expert,
    random_layer,
)

from made_up import long
from moesaic.core.numa import Node
from moesaic.kernels.base import Blocks
from moesaic.kernels.native_executor import NativeExecutor
from moesaic.kernels.native_format import DTYPES
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


# Is a layer the sum over its tokens and experts, however they are distributed?

GROUPED_SHAPE = ExpertShape(40, 24)
NODES = (Node(0, (0,)), Node(0, (0,)))
KERNELS = {
    (way, dtype, tiles): Way(way.isa, tiles).kernel(GROUPED_SHAPE, dtype)
    for way in WAYS
    for dtype in DTYPES
    for tiles in ((0,) if not way.tiles_from else (1, 5, 20))
}
BLOCKS = {
    dtype: Blocks(
        [
            packed(WAYS[0].kernel(GROUPED_SHAPE, dtype), random_expert(GROUPED_SHAPE, e))
            for e in range(6)
        ]
    )
    for dtype in DTYPES
    if WAYS
}


def agrees(layer: Layer, experts: list[int], workers: int = 1) -> None:
    out = layer.computed(NativeExecutor(layer.kernel, workers + 1), experts)
    blocks = layer.blocks.tensors
    truth = expected_layer(layer.kernel, blocks, experts, layer.hidden, layer.ids, layer.weights)
    assert truth.used(out) < 1.0


@pytest.mark.skipif(not WAYS, reason="this CPU has no instructions for the kernels")
@settings(max_examples=150)
@given(data=st.data())
def test_random_layers(data: st.DataObject) -> None:
    """Any subset of experts in any order, tokens routed to none of them or to one of them twice."""
    way, dtype, tiles = data.draw(st.sampled_from(list(KERNELS)))
    tokens, top_k = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 6))
    favourites = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=6))
    flat = st.lists(st.sampled_from(favourites), min_size=tokens * top_k, max_size=tokens * top_k)
    ids = torch.tensor(data.draw(flat)).view(tokens, top_k)
    seed = data.draw(st.integers(0, 99))
    experts = data.draw(st.lists(st.integers(0, 5), unique=True))
    hidden, weights = normal(tokens, 40, seed=seed), normal(tokens, top_k, seed=seed + 100)
    layer = Layer(KERNELS[way, dtype, tiles], BLOCKS[dtype], hidden, ids, weights)
    agrees(layer, experts, workers=data.draw(st.integers(0, 2)))


@every_kernel
def test_all_tokens_routed_to_one_expert(way: Way, dtype: str) -> None:
    """More than 256 of them, which are computed in parts; the last part is a single token."""
    kernel = way.kernel(GROUPED_SHAPE, dtype)
    layer = random_layer(kernel, 513, experts=3, top_k=1)
    layer.ids.fill_(2)
    agrees(layer, [0, 1, 2])


@every_kernel
def test_all_tokens_routed_to_all_experts(way: Way, dtype: str) -> None:
    layer = random_layer(way.kernel(GROUPED_SHAPE, dtype), 20, experts=6, top_k=6)
    agrees(layer, [5, 0, 1, 4, 3, 2])


@every_kernel
def test_more_rows_than_are_computed_at_once(way: Way, dtype: str) -> None:
    """8192 rows between two phases: here three times as many."""
    kernel = way.kernel(ExpertShape(10, 6), dtype)
    layer = random_layer(kernel, 4096, experts=8, top_k=6)
    agrees(layer, list(range(8)))


@every_way
def test_one_token_may_want_an_expert_twice(way: Way) -> None:
    for dtype in DTYPES:
        layer = random_layer(way.kernel(GROUPED_SHAPE, dtype), 1, experts=3, top_k=3)
        layer.ids.copy_(torch.tensor([[2, 0, 2]]))
        agrees(layer, [0, 1, 2])


@every_kernel
def test_no_tokens_and_no_experts(way: Way, dtype: str) -> None:
    layer = random_layer(way.kernel(GROUPED_SHAPE, dtype), 4, experts=2, top_k=1)
    executor = NativeExecutor(layer.kernel, 2)
    assert not layer.computed(executor, []).any(), "experts that are not computed add nothing"
    layer.ids.fill_(0)
    assert not layer.computed(executor, [1]).any()
    none = layer._replace(hidden=torch.empty(0, 40), ids=layer.ids[:0], weights=layer.weights[:0])
    assert none.computed(executor).shape == (0, 40)


@every_kernel
@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_padding_adds_nothing(way: Way, dtype: str, tokens: int) -> None:
    """Every expert is computed, the last one too, so that no number of an expert is left over that
    padding could stand for."""
    layer = random_layer(way.kernel(GROUPED_SHAPE, dtype), tokens, experts=6, top_k=4)
    counts = torch.arange(tokens) % 4 + 1
    layer.ids[torch.arange(4) >= counts[:, None]] = -1
    blocks, every = layer.blocks.tensors, list(range(6))
    truth = expected_layer(layer.kernel, blocks, every, layer.hidden, layer.ids, layer.weights)
    for nodes in ((), NODES):
        out = layer.computed(layer.kernel.executor(2, nodes), every, ragged=True)
        assert truth.used(out) < 1.0


@every_way
def test_padding_that_was_not_announced_is_refused(way: Way) -> None:
    layer = random_layer(way.kernel(GROUPED_SHAPE, "bf16"), 3, experts=6, top_k=4)
    layer.ids[1, 3] = -1
    with pytest.raises(ValueError, match="asks for expert -1"):
        layer.computed(NativeExecutor(layer.kernel, 1))
