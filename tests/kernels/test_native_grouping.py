"""Is a layer the sum over its tokens and experts, however they are distributed?"""

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
    every_kernel,
    every_way,
    normal,
    packed,
    random_expert,
    random_layer,
)

from moesaic.core.numa import Node
from moesaic.kernels.base import Blocks
from moesaic.kernels.native_executor import NativeExecutor
from moesaic.kernels.native_format import DTYPES
from moesaic.model_info.expert_shape import ExpertShape

SHAPE = ExpertShape(40, 24)
NODES = (Node(0, (0,)), Node(0, (0,)))
KERNELS = {
    (way, dtype, tiles): Way(way.isa, tiles).kernel(SHAPE, dtype)
    for way in WAYS
    for dtype in DTYPES
    for tiles in ((0,) if not way.tiles_from else (1, 5, 20))
}
BLOCKS = {
    dtype: Blocks([packed(WAYS[0].kernel(SHAPE, dtype), random_expert(SHAPE, e)) for e in range(6)])
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
    kernel = way.kernel(SHAPE, dtype)
    layer = random_layer(kernel, 513, experts=3, top_k=1)
    layer.ids.fill_(2)
    agrees(layer, [0, 1, 2])


@every_kernel
def test_all_tokens_routed_to_all_experts(way: Way, dtype: str) -> None:
    layer = random_layer(way.kernel(SHAPE, dtype), 20, experts=6, top_k=6)
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
        layer = random_layer(way.kernel(SHAPE, dtype), 1, experts=3, top_k=3)
        layer.ids.copy_(torch.tensor([[2, 0, 2]]))
        agrees(layer, [0, 1, 2])


@every_kernel
def test_no_tokens_and_no_experts(way: Way, dtype: str) -> None:
    layer = random_layer(way.kernel(SHAPE, dtype), 4, experts=2, top_k=1)
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
    layer = random_layer(way.kernel(SHAPE, dtype), tokens, experts=6, top_k=4)
    counts = torch.arange(tokens) % 4 + 1
    layer.ids[torch.arange(4) >= counts[:, None]] = -1
    blocks, every = layer.blocks.tensors, list(range(6))
    truth = expected_layer(layer.kernel, blocks, every, layer.hidden, layer.ids, layer.weights)
    for nodes in ((), NODES):
        out = layer.computed(layer.kernel.executor(2, nodes), every, ragged=True)
        assert truth.used(out) < 1.0


@every_way
def test_padding_that_was_not_announced_is_refused(way: Way) -> None:
    layer = random_layer(way.kernel(SHAPE, "bf16"), 3, experts=6, top_k=4)
    layer.ids[1, 3] = -1
    with pytest.raises(ValueError, match="asks for expert -1"):
        layer.computed(NativeExecutor(layer.kernel, 1))
