"""Is the reference arithmetic the formula, and the grouped sum the plain double loop?"""

from __future__ import annotations

import math

import pytest
import torch

from moesaic.core.errors import UnknownName
from moesaic.kernels.base import Blocks, ExpertWeights
from moesaic.kernels.choose import make_kernel
from moesaic.kernels.grouping import group_by_expert, routed_sum
from moesaic.kernels.reference import (
    ACTIVATIONS,
    ReferenceKernel,
    block_views,
    feed_forward,
    pack_matrices,
)
from moesaic.model_info.expert_shape import ExpertShape

torch.set_num_threads(1)
SHAPE = ExpertShape(hidden=12, intermediate=20)
KERNEL = ReferenceKernel(SHAPE, "fp32")


def random_expert(shape: ExpertShape, seed: int) -> ExpertWeights:
    generator = torch.Generator().manual_seed(seed)
    wide = (shape.intermediate, shape.hidden)
    sizes = (wide, wide, wide[::-1])
    gate, up, down = (torch.randn(size, generator=generator) * 0.3 for size in sizes)
    return ExpertWeights(gate, up, down)


def packed(shape: ExpertShape, weights: ExpertWeights, dtype: torch.dtype) -> torch.Tensor:
    values = torch.full((shape.values,), math.nan, dtype=dtype)
    pack_matrices(shape, weights, values)
    return values


def block_of(weights: ExpertWeights) -> torch.Tensor:
    block = torch.full((KERNEL.block_bytes,), 255, dtype=torch.uint8)
    KERNEL.pack(weights, block)
    return block


def by_formula(weights: ExpertWeights, x: torch.Tensor, activation: str) -> torch.Tensor:
    """In fp64, matrix by matrix."""
    x, gate, up, down = (t.double() for t in (x, weights.gate, weights.up, weights.down))
    return (ACTIVATIONS[activation](x @ gate.T) * (x @ up.T)) @ down.T


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_one_expert_is_the_formula(activation: str) -> None:
    shape = ExpertShape(12, 20, activation)
    weights, x = random_expert(shape, 0), torch.randn(7, 12)
    got = feed_forward(shape, packed(shape, weights, torch.float32), x)
    assert (got - by_formula(weights, x, activation)).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_rounds_a_few_times_and_no_more(dtype: torch.dtype) -> None:
    """Three roundings on the way (gate and up, their product, the result), each of relative size
    eps / 2; they meet sums of 20 terms, so a few eps of the result's own size is what is left."""
    weights, x = random_expert(SHAPE, 1), torch.randn(50, 12).to(dtype)
    weights = ExpertWeights(*(t.to(dtype) for t in (weights.gate, weights.up, weights.down)))
    truth = by_formula(weights, x, "silu")
    got = feed_forward(SHAPE, packed(SHAPE, weights, dtype), x)
    assert got.dtype == dtype
    assert (got - truth).abs().max() < 3 * torch.finfo(dtype).eps * truth.abs().max()


def test_packing_fills_the_block_and_loses_nothing() -> None:
    weights = random_expert(SHAPE, 2)
    gate_up, down = block_views(SHAPE, packed(SHAPE, weights, torch.float32))
    assert torch.equal(gate_up, torch.cat((weights.gate, weights.up)))
    assert torch.equal(down, weights.down)


def test_a_block_of_the_wrong_size_is_noticed() -> None:
    with pytest.raises(AssertionError, match="720 long"):
        feed_forward(SHAPE, torch.zeros(719), torch.zeros(1, 12))


@pytest.mark.parametrize(
    ("tokens", "experts", "top_k"), [(1, 8, 2), (9, 4, 4), (30, 3, 1), (2, 16, 3), (0, 4, 2)]
)
def test_the_routed_sum_is_the_double_loop(tokens: int, experts: int, top_k: int) -> None:
    """One token; every expert chosen; many tokens; experts without tokens; no token at all."""
    generator = torch.Generator().manual_seed(tokens)
    hidden = torch.randn(tokens, 12, generator=generator)
    chosen = torch.rand(tokens, experts, generator=generator).topk(top_k).indices
    scale = torch.rand(tokens, top_k, generator=generator)
    weights = [random_expert(SHAPE, seed) for seed in range(experts)]
    blocks = [block_of(one) for one in weights]
    got = routed_sum(KERNEL, blocks.__getitem__, hidden, chosen, scale)
    expected = torch.zeros(tokens, 12, dtype=torch.float64)
    for token in range(tokens):
        for rank in range(top_k):
            one = by_formula(weights[int(chosen[token, rank])], hidden[token : token + 1], "silu")
            expected[token] += float(scale[token, rank]) * one[0]
    assert got.dtype == torch.float32
    assert torch.allclose(got.double(), expected, atol=1e-5)


def test_groups_come_in_order_and_skip_idle_experts() -> None:
    experts = torch.tensor([[4, 0], [2, 4], [4, 2]])
    weights = torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    groups = group_by_expert(experts, weights)
    assert list(groups) == [0, 2, 4]
    rows = [group.tokens for group in groups.values() if group.tokens is not None]
    assert [tokens.tolist() for tokens in rows] == [[0], [1, 2], [0, 1, 2]]
    weights_of_4 = groups[4].weights
    assert isinstance(weights_of_4, torch.Tensor)
    assert torch.equal(weights_of_4, torch.tensor([[0.1], [0.4], [0.5]]))


def test_parts_of_two_devices_add_up_to_the_whole() -> None:
    weights, hidden = random_expert(SHAPE, 3), torch.randn(6, 12)
    block, everyone = block_of(weights), torch.arange(6)
    whole, parts = torch.zeros(6, 12), torch.zeros(6, 12)
    KERNEL.compute(block, hidden, None, torch.ones(6, 1), whole)
    for share in (0.25, 0.75):
        KERNEL.compute(block, hidden, everyone, torch.full((6, 1), share), parts)
    assert torch.allclose(whole, parts, atol=1e-6)


def test_what_cannot_be_computed_is_refused() -> None:
    with pytest.raises(AssertionError, match="tanh"):
        ReferenceKernel(ExpertShape(12, 20, "tanh"), "fp32")
    with pytest.raises(UnknownName, match="int3"):
        make_kernel(SHAPE, "int3")
    assert KERNEL.workspace(8) == 8 * KERNEL.workspace(1)


def test_padding_has_no_group() -> None:
    """Tokens that use fewer experts than others."""
    ids = torch.tensor([[2, 0, -1], [-1, -1, -1], [0, 2, 1], [2, -1, -1]])
    weights = torch.arange(12.0).view(4, 3)
    groups = group_by_expert(ids, weights)
    assert list(groups) == [0, 1, 2]
    rows = {e: group.tokens.tolist() for e, group in groups.items() if group.tokens is not None}
    assert rows == {0: [0, 2], 1: [2], 2: [0, 2, 3]}
    assert [group.load for group in groups.values()] == [2, 1, 3]
    scales = [torch.as_tensor(group.weights).ravel().tolist() for group in groups.values()]
    assert scales == [[1.0, 6.0], [8.0], [0.0, 7.0, 9.0]]


def test_padding_of_a_single_token_has_no_group() -> None:
    groups = group_by_expert(torch.tensor([[3, 1, -1]]), torch.tensor([[0.5, 0.25, 0.0]]))
    assert {e: group.weights for e, group in groups.items()} == {3: 0.5, 1: 0.25}


def test_a_torch_crew_adds_nothing_for_padding() -> None:
    blocks = Blocks([block_of(random_expert(SHAPE, seed)) for seed in range(3)])
    hidden, ids = torch.randn(4, 12), torch.tensor([[2, 0], [1, -1], [-1, -1], [0, 1]])
    weights, out = torch.rand(4, 2), torch.full((4, 12), 7.0)
    KERNEL.executor(1).layer(blocks, [0, 1, 2], hidden, ids, weights, out, ragged=True)
    for token in range(4):
        row, expected = hidden[token : token + 1], torch.zeros(1, 12)
        for expert, weight in zip(ids[token].tolist(), weights[token].tolist(), strict=True):
            if expert >= 0:
                KERNEL.compute(blocks.tensors[expert], row, None, weight, expected)
        assert torch.allclose(out[token], expected[0], atol=1e-5)
