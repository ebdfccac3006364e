"""Do the native kernels compute the formula on the weights as stored, to within rounding, for every
instruction set, precision, number of tokens and shape? `expected_experts.py` says what rounding is.
"""

from __future__ import annotations

import pytest
import torch
from expected_experts import expected_expert
from native_experts import Way, every_kernel, normal, packed, random_expert
from torch.nn import functional

from moesaic.kernels import products
from moesaic.kernels.base import Blocks
from moesaic.kernels.native_format import ACTIVATIONS
from moesaic.model_info.expert_shape import ExpertShape

TOKENS = [1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 64, 255, 257, 300]
# None divisible by 16, 32, 64 or 256 throughout; one over several groups; one over 2048 inputs,
# which is as many as tiles sum up at a time.
SIZES = [(5, 3), (1, 1), (100, 37), (131, 77), (48, 272), (320, 520), (2100, 33), (33, 2100)]
PRECISIONS = [torch.float32, torch.bfloat16, torch.float16]


@every_kernel
@pytest.mark.parametrize("tokens", TOKENS)
def test_any_number_of_tokens(way: Way, dtype: str, tokens: int) -> None:
    kernel = way.kernel(ExpertShape(131, 77), dtype)
    block, hidden = packed(kernel, random_expert(kernel.shape)), normal(tokens, 131, seed=tokens)
    out = torch.zeros(tokens, 131)
    kernel.compute(block, hidden, None, 1.0, out)
    assert expected_expert(kernel, block, hidden).used(out) < 1.0


@every_kernel
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_any_shape(way: Way, dtype: str, size: tuple[int, int]) -> None:
    kernel = way.kernel(ExpertShape(*size), dtype)
    block = packed(kernel, random_expert(kernel.shape))
    for tokens in (1, 7, 18):
        hidden = normal(tokens, size[0], seed=tokens)
        out = torch.zeros(tokens, size[0])
        kernel.compute(block, hidden, None, 1.0, out)
        assert expected_expert(kernel, block, hidden).used(out) < 1.0


@every_kernel
@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
@pytest.mark.parametrize("result", PRECISIONS, ids=str)
def test_hidden_states_and_results_of_any_precision(
    way: Way, dtype: str, precision: torch.dtype, result: torch.dtype
) -> None:
    kernel = way.kernel(ExpertShape(100, 37), dtype)
    blocks = Blocks([packed(kernel, random_expert(kernel.shape))])
    hidden = normal(19, 100, seed=3).to(precision)
    out = torch.full((19, 100), -9.0, dtype=result)
    ids, ones = torch.zeros(19, 1, dtype=torch.int64), torch.ones(19, 1)
    kernel.executor(2).layer(blocks, [0], hidden, ids, ones, out)
    assert expected_expert(kernel, blocks.tensors[0], hidden).used(out) < 1.0


@every_kernel
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_any_activation(way: Way, dtype: str, activation: str) -> None:
    """Large gates too, where exp over- or underflows."""
    kernel = way.kernel(ExpertShape(64, 48, activation), dtype)
    block = packed(kernel, random_expert(kernel.shape))
    hidden = normal(20, 64, seed=4)
    hidden[10:] *= 200.0
    out = torch.zeros(20, 64)
    kernel.compute(block, hidden, None, 1.0, out)
    assert expected_expert(kernel, block, hidden).used(out) < 1.0


@every_kernel
def test_rows_are_gathered_weighted_and_added(way: Way, dtype: str) -> None:
    kernel = way.kernel(ExpertShape(48, 272), dtype)
    block, hidden = packed(kernel, random_expert(kernel.shape)), normal(30, 48, seed=5)
    rows, scale = torch.tensor([28, 3, 0, 17, 4]), normal(5, 1, seed=6)
    out = torch.ones(30, 48)
    kernel.compute(block, hidden, rows, scale, out)
    expected = expected_expert(kernel, block, hidden[rows])
    part = (out[rows] - 1.0).double() / scale.double()
    near = (part - expected.value).abs() <= expected.tolerance() + 1e-6 / scale.abs()
    assert bool(near.all())
    untouched = torch.ones(30, dtype=torch.bool)
    untouched[rows] = False
    assert bool((out[untouched] == 1.0).all())


@every_kernel
def test_rows_may_lie_apart(way: Way, dtype: str) -> None:
    """As slices of a wider tensor do; and a single row's distance to the next says nothing."""
    kernel = way.kernel(ExpertShape(50, 40), dtype)
    block, wide = packed(kernel, random_expert(kernel.shape)), normal(21, 77, seed=7)
    one_by_one = normal(50, 1).T
    assert one_by_one.stride(0) == 1
    for hidden in (wide[:, 5:55], wide[:1, 5:55], one_by_one):
        together, apart = torch.zeros(hidden.shape), torch.zeros(hidden.shape)
        kernel.compute(block, hidden.contiguous(), None, 1.0, together)
        kernel.compute(block, hidden, None, 1.0, apart)
        assert torch.equal(together, apart)
        assert float(together.abs().max()) > 0.01


@every_kernel
def test_the_error_is_what_the_documentation_says(way: Way, dtype: str) -> None:
    """Beside the weights' own: 0.3 % in bf16; 1.9 % in int8, whose scales follow the largest of 256
    gated activations, and those have long tails; in int4 0.4 % in tiles, in vectors 0.005 % in
    16-bit codes and 1.2 % in bytes, for many tokens."""
    kernel = way.kernel(ExpertShape(512, 512), dtype)
    block, hidden = packed(kernel, random_expert(kernel.shape)), normal(64, 512, seed=8)
    out = torch.zeros(64, 512)
    kernel.compute(block, hidden, None, 1.0, out)
    truth = expected_expert(kernel, block, hidden).value
    many = 0.004 if way.isa == "amx" else 0.0125
    most = {"bf16": 0.003, "int8": 0.02, "int4": many if way.tiles_from else 0.00005}[dtype]
    assert 0.8 * most < float((out - truth).norm() / truth.norm()) < most


# Is a product that is computed in fp32 the bf16 product, rounded once?


@pytest.mark.parametrize("piece", [64, 1 << 20], ids=["pieces", "whole"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_widened_products_are_rounded_once(
    monkeypatch: pytest.MonkeyPatch, piece: int, with_bias: bool
) -> None:
    monkeypatch.setattr(products, "widens", lambda dtype: dtype is torch.bfloat16)
    monkeypatch.setattr(products, "PIECE", piece)
    random = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(shape, generator=random).bfloat16() for shape in ((3, 32), (20, 32), (20,))
    )
    given = bias if with_bias else None
    wide = functional.linear(x.float(), weight.float(), bias.float() if with_bias else None)
    found = products.linear(x, weight, given)
    assert found.dtype is torch.bfloat16
    assert torch.equal(found, wide.bfloat16())


def test_other_precisions_are_left_alone() -> None:
    assert not products.widens(torch.float32)
    assert not products.widens(torch.float16)
