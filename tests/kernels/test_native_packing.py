"""Does a block stand for the weights, whatever they came as, and is it as large as planned?"""

from __future__ import annotations

import pytest
import torch
from native_experts import (
    WAYS,
    Way,
    bytes_at,
    every_dtype,
    every_kernel,
    normal,
    packed,
    random_expert,
)

from moesaic.core.errors import BrokenWeights
from moesaic.kernels import _native
from moesaic.kernels.base import ExpertWeights
from moesaic.kernels.native import NativeKernel
from moesaic.kernels.native_format import DTYPES
from moesaic.kernels.quantize import dequantize, pack_codes, quantize
from moesaic.model_info.expert_block import FORMATS, block_bytes, strips_bytes
from moesaic.model_info.expert_shape import ExpertShape

SHAPES = [ExpertShape(h, i) for h, i in [(5, 3), (1, 1), (131, 77), (48, 272), (320, 520)]]
NAMES = ("gate", "up", "down")
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
pytestmark = pytest.mark.skipif(not WAYS, reason="this CPU has no instructions for the kernels")


def kernel_for(shape: ExpertShape, dtype: str) -> NativeKernel:
    return WAYS[0].kernel(shape, dtype)


def after_storing(matrix: torch.Tensor, dtype: str) -> torch.Tensor:
    """By the plain functions of `quantize.py`."""
    if dtype == "bf16":
        return matrix.bfloat16().float()
    form = FORMATS[dtype]
    codes, scales = quantize(matrix, form)
    columns = matrix.shape[1]
    return dequantize(pack_codes(codes, form), scales, columns, form, torch.float32)


@every_dtype
@every_shape
def test_codes_and_scales_are_those_of_the_reference(dtype: str, shape: ExpertShape) -> None:
    kernel, weights = kernel_for(shape, dtype), random_expert(shape)
    for size in (1e-30, 1.0, 1e30):
        sized = ExpertWeights(weights.gate * size, weights.up * size, weights.down * size)
        back = kernel.unpack(packed(kernel, sized))
        for name in NAMES:
            assert torch.equal(getattr(back, name), after_storing(getattr(sized, name), dtype))


def test_codes_that_int4_weights_had_are_kept_as_by_the_reference() -> None:
    shape, generator = ExpertShape(96, 64), torch.Generator().manual_seed(1)
    wide = torch.randint(-7, 8, (64, 3, 32), generator=generator).float()
    wide[:16] = wide[:16].clamp(-2, 3)
    scales = (0.01 + torch.rand(64, 3, 1, generator=generator)).half().float()
    matrix = (wide * scales).flatten(1)
    weights = ExpertWeights(matrix, -matrix, matrix.T.contiguous())
    kernel = kernel_for(shape, "int4")
    back = kernel.unpack(packed(kernel, weights))
    for name in NAMES:
        assert torch.equal(getattr(back, name), after_storing(getattr(weights, name), "int4"))
    assert bool(((back.gate - matrix).abs() <= matrix.abs() / 255).all())


@every_dtype
def test_ties_zeros_and_vanishing_weights_are_stored_as_by_the_reference(dtype: str) -> None:
    shape = ExpertShape(512, 40)
    matrix = torch.arange(-20480 / 2, 20480 / 2).view(40, 512) / 64  # many halves of a step
    matrix[3], matrix[4], matrix[5] = 0.0, 1e-40, -5e-38
    matrix[6, ::2], matrix[7] = 3.0e38, -2.9e38
    weights = ExpertWeights(matrix, -matrix, matrix.T.contiguous())
    kernel = kernel_for(shape, dtype)
    back = kernel.unpack(packed(kernel, weights))
    for name in NAMES:
        assert torch.equal(getattr(back, name), after_storing(getattr(weights, name), dtype))


@every_dtype
@every_shape
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_checkpoints_of_any_precision_and_stride_are_taken(
    dtype: str, shape: ExpertShape, source: torch.dtype
) -> None:
    kernel, weights = kernel_for(shape, dtype), random_expert(shape)
    given = ExpertWeights(*(getattr(weights, name).to(source) for name in NAMES))
    plain = packed(kernel, ExpertWeights(*(getattr(given, name).float() for name in NAMES)))
    apart = ExpertWeights(
        given.gate.T.contiguous().T,
        torch.nn.functional.pad(given.up, (3, 2))[:, 3:-2],
        given.down.repeat_interleave(2, dim=0)[::2],
    )
    for each in (given, apart, ExpertWeights(given.gate, weights.up.to(source), given.down)):
        assert torch.equal(packed(kernel, each), plain)


@every_dtype
@every_shape
def test_nothing_is_written_outside_of_a_block(dtype: str, shape: ExpertShape) -> None:
    """In a block the kernels fill every byte they will ever read: none is left as it was."""
    kernel = kernel_for(shape, dtype)
    used = strips_bytes(dtype, shape.hidden, shape.intermediate)
    memory = bytes_at(used + 256)
    first, second = memory.clone(), torch.zeros_like(memory)
    for filler in (0x00, 0xFF):
        memory.fill_(filler)
        native_pack(kernel, memory[128 : 128 + used])
        assert bool((memory[:128] == filler).all())
        assert bool((memory[128 + used :] == filler).all())
        (first if filler else second).copy_(memory)
    assert torch.equal(first[128 : 128 + used], second[128 : 128 + used])


def native_pack(kernel: NativeKernel, block: torch.Tensor) -> None:
    """Without the check of the block's length: just as many bytes as the kernel needs."""
    weights = random_expert(kernel.shape)
    gate, up, down = (getattr(weights, name).data_ptr() for name in NAMES)
    hidden, inner = kernel.shape.hidden, kernel.shape.intermediate
    runner = kernel.runner(_native.Pool([-1], 0.0))
    runner.pack(gate, up, down, 0, hidden, inner, block.data_ptr())


@every_dtype
def test_blocks_are_as_large_as_planned(dtype: str) -> None:
    sizes = [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 257, 511, 513, 768, 1408, 2048]
    for hidden in sizes:
        for inner in sizes:
            planned = strips_bytes(dtype, hidden, inner)
            assert planned == _native.block_bytes(DTYPES[dtype], hidden, inner)
            assert block_bytes(dtype, hidden, inner) >= planned


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_weights_that_are_no_numbers_are_refused(dtype: str, name: str, value: float) -> None:
    shape = ExpertShape(131, 77)
    weights = random_expert(shape)
    getattr(weights, name)[-1, -1] = value
    words = f"{dtype} need finite weights, .*{name} matrix has infinities or nan: the checkpoint"
    with pytest.raises(BrokenWeights, match=words):
        packed(kernel_for(shape, dtype), weights)


def test_bf16_keeps_weights_that_are_no_numbers() -> None:
    weights = random_expert(ExpertShape(131, 77))
    weights.gate[0, 130], weights.up[76, 0], weights.down[130, 76] = (
        torch.inf,
        torch.nan,
        -torch.inf,
    )
    kernel = kernel_for(ExpertShape(131, 77), "bf16")
    back = kernel.unpack(packed(kernel, weights))
    assert float(back.gate[0, 130]) == torch.inf
    assert bool(back.up[76, 0].isnan())
    assert float(back.down[130, 76]) == -torch.inf
    out = torch.zeros(2, 131)
    kernel.compute(packed(kernel, weights), normal(2, 131), None, 1.0, out)
    assert not bool(out.isfinite().all())


@every_kernel
def test_every_instruction_set_reads_the_same_block(way: Way, dtype: str) -> None:
    """Blocks outlive the setting that chose the kernel that fills them."""
    shape = ExpertShape(131, 77)
    mine, theirs = way.kernel(shape, dtype), kernel_for(shape, dtype)
    assert torch.equal(packed(mine, random_expert(shape)), packed(theirs, random_expert(shape)))
