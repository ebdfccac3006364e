"""Are quantised experts as near to their weights as their steps allow, whatever the shape, and is
their arithmetic the reference's on the dequantised weights?"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from moesaic.core.dtypes import weight_bytes
from moesaic.core.errors import BrokenWeights
from moesaic.kernels.base import ALIGNMENT, ExpertWeights
from moesaic.kernels.choose import EXPERT_DTYPES, make_kernel
from moesaic.kernels.quantize import FORMATS, dequantize, pack_codes, quantize
from moesaic.kernels.quantized import QuantizedKernel
from moesaic.kernels.reference import ReferenceKernel, feed_forward
from moesaic.model_info.expert_shape import ExpertShape

torch.set_num_threads(1)
# Whole groups; a short last group; an odd row; fewer weights than a group; one weight.
COLUMNS = [512, 256, 300, 131, 33, 7, 1]
SHAPES = [ExpertShape(256, 128), ExpertShape(131, 77), ExpertShape(5, 3), ExpertShape(1, 1)]
# In scales; why 1.04 in int4: -8 is the largest weight's, 7 the last on the other side, and
# rounding a scale to bf16 moves 8 of them by 8 / 256.
WORST_ERROR = {"int8": 0.5, "int4": 1.04}
GROUPS = {8: 256, 4: 32}  # weights that share a scale, by bits
by_dtype = pytest.mark.parametrize("dtype", FORMATS)


def normal(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def expert(shape: ExpertShape, seed: int = 0) -> ExpertWeights:
    wide = (shape.intermediate, shape.hidden)
    sizes = (wide, wide, wide[::-1])
    gate, up, down = (0.3 * normal(*size, seed=seed + n) for n, size in enumerate(sizes))
    return ExpertWeights(gate, up, down)


def packed(kernel: QuantizedKernel, weights: ExpertWeights) -> torch.Tensor:
    block = torch.full((kernel.block_bytes,), 255, dtype=torch.uint8)
    kernel.pack(weights, block)
    return block


def round_trip(
    matrix: torch.Tensor, dtype: str, to: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """The matrix after storing, and each weight's scale."""
    form, columns = FORMATS[dtype], matrix.shape[1]
    codes, scales = quantize(matrix, form)
    back = dequantize(pack_codes(codes, form), scales, columns, form, to)
    return back, scales.float().repeat_interleave(form.group, dim=1)[:, :columns]


@pytest.mark.parametrize("scale", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("codes", [(-8, 7), (-7, 7), (-5, 5), (-2, 7), (-1, 1)])
def test_weights_that_were_int4_keep_their_codes(
    codes: tuple[int, int], scale: torch.dtype
) -> None:
    """Only the scale is rounded, to its 8 bits; where it had no more, nothing is. (Codes of one
    size are multiples of many steps: another one is taken.)"""
    low, high = codes
    generator = torch.Generator().manual_seed(1)
    whole = torch.randint(low, high + 1, (64, 4, 32), generator=generator).float()
    scales = (0.01 + 0.05 * torch.rand(64, 4, 1, generator=generator)).to(scale).float()
    matrix = (whole * scales).flatten(1)
    back, _ = round_trip(matrix, "int4")
    assert bool(((back - matrix).abs() <= matrix.abs() / 255).all())
    if scale == torch.bfloat16 and high > 1:
        assert torch.equal(back, matrix)


def test_zero_points_are_rounded_to_other_codes() -> None:
    """A group of its own offset has no multiple of one step: within half a step, as any other."""
    codes = torch.arange(16.0).repeat(2)[None]
    matrix = 0.1 * (codes - 6.5)
    back, scales = round_trip(matrix, "int4")
    assert not torch.equal(back, matrix)
    assert bool(((back - matrix).abs() <= 1.04 * scales.abs()).all())


def read_matrix(
    raw: bytes, codes_at: int, scales_at: int, size: tuple[int, int], bits: int
) -> NDArray[np.float32]:
    """By the documented layout, weight by weight."""
    rows, columns = size
    group = GROUPS[bits]
    width, groups = (columns * bits + 7) // 8, (columns + group - 1) // group
    out = np.empty(size, dtype=np.float32)
    for row in range(rows):
        for column in range(columns):
            byte = raw[codes_at + row * width + column % width]
            code = byte if bits == 8 else (byte >> 4 if column >= width else byte & 15)
            code -= (1 << bits) if code >= 1 << (bits - 1) else 0
            at = scales_at + 2 * (row * groups + column // group)
            scale = np.frombuffer(b"\0\0" + raw[at : at + 2], dtype="<f4")[0]  # bf16: fp32's top
            out[row, column] = np.float32(code) * scale
    return out


def read_block(shape: ExpertShape, dtype: str, block: torch.Tensor) -> torch.Tensor:
    """The expert as the reference kernel's flat values, read by the documented layout."""
    bits, raw = int(dtype[3:]), block.numpy().tobytes()
    sizes = ((2 * shape.intermediate, shape.hidden), (shape.hidden, shape.intermediate))
    offsets, end = [], 0
    group = GROUPS[bits]
    for each in (
        *(rows * ((columns * bits + 7) // 8) for rows, columns in sizes),
        *(rows * 2 * ((columns + group - 1) // group) for rows, columns in sizes),
    ):
        offsets.append(end)
        end = (end + each + 63) // 64 * 64
    assert end <= len(raw)
    parts = [read_matrix(raw, offsets[n], offsets[n + 2], sizes[n], bits) for n in (0, 1)]
    return torch.from_numpy(np.concatenate([part.ravel() for part in parts]))


@by_dtype
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 1e37])
def test_errors_stay_within_the_step(dtype: str, columns: int, size: float) -> None:
    matrix = size * normal(40, columns)
    back, scales = round_trip(matrix, dtype)
    assert bool(back.isfinite().all())
    assert bool(((back - matrix).abs() <= WORST_ERROR[dtype] * scales.abs()).all())
    inner = matrix / scales < 7.5  # at or within the last int4 code of either side
    assert bool(((back - matrix).abs() <= 0.5001 * scales.abs())[inner].all())


@by_dtype
def test_every_code_is_the_nearest_for_its_scale(dtype: str) -> None:
    matrix = normal(6, 70, seed=1).double()
    back, scales = round_trip(matrix, dtype)
    bits = FORMATS[dtype].bits
    every = torch.arange(-(2 ** (bits - 1)), 2 ** (bits - 1), dtype=torch.float64)
    nearest = (every * scales.double()[..., None] - matrix[..., None]).abs().amin(-1)
    assert torch.allclose((back - matrix).abs(), nearest, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize(("tail", "int8", "int4"), [("normal", 0.0075, 0.088), ("t", 0.015, 0.12)])
def test_the_measured_error_is_what_the_documentation_says(
    tail: str, int8: float, int4: float
) -> None:
    torch.manual_seed(3)
    heavy = torch.distributions.StudentT(4.0).sample((200, 640))
    matrix = normal(200, 640) if tail == "normal" else heavy
    for dtype, most in (("int8", int8), ("int4", int4)):
        error = (round_trip(matrix, dtype)[0] - matrix).norm() / matrix.norm()
        assert 0.8 * most < error < most


@by_dtype
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("columns", COLUMNS)
def test_representable_weights_come_back_exactly(dtype: str, sign: int, columns: int) -> None:
    """Codes times a power of two, the largest code present in every group."""
    form = FORMATS[dtype]
    limit = abs(form.largest_code)
    seeded = torch.Generator().manual_seed(columns)
    codes = torch.randint(1 - limit, limit, (20, columns), generator=seeded).float()
    codes[:, :: form.group] = sign * form.largest_code
    matrix = codes * 2.0**-9
    back, _ = round_trip(matrix, dtype)
    assert torch.equal(back, matrix)


@by_dtype
def test_zero_and_vanishing_weights_become_zero(dtype: str) -> None:
    matrix = normal(4, 512)
    matrix[0] = 0.0
    matrix[1] = 1e-40  # not a normal number, as would be its scale
    matrix[2, :256] = -5e-38
    back, _ = round_trip(matrix, dtype)
    assert not back[:2].any()
    assert not back[2, :256].any()
    assert bool(back[2, 256:].any())
    assert bool(back[3].any())


@by_dtype
def test_an_outlier_spoils_its_own_group_only(dtype: str) -> None:
    form = FORMATS[dtype]
    matrix = normal(3, 4 * form.group)
    spoiled = matrix.clone()
    spoiled[1, form.group + 5] = 1e6
    changed = round_trip(spoiled, dtype)[0] != round_trip(matrix, dtype)[0]
    assert bool(changed[1, form.group : 2 * form.group].any())
    changed[1, form.group : 2 * form.group] = False
    assert not changed.any()


@by_dtype
@pytest.mark.parametrize("to", [torch.float16, torch.bfloat16])
def test_dequantised_weights_are_rounded_once(dtype: str, to: torch.dtype) -> None:
    """Small ones too, whose scales fp16 would hold with few digits."""
    matrix = 1e-4 * normal(20, 100)
    exact, _ = round_trip(matrix, dtype)
    assert torch.equal(round_trip(matrix, dtype, to)[0], exact.to(to))


@pytest.mark.parametrize("source", [torch.bfloat16, torch.float16])
def test_checkpoints_of_any_precision_are_taken(source: torch.dtype) -> None:
    shape = ExpertShape(64, 32)
    kernel = QuantizedKernel(shape, "int4")
    weights = expert(shape)
    low = ExpertWeights(*(t.to(source) for t in (weights.gate, weights.up, weights.down)))
    wide = ExpertWeights(*(t.float() for t in (low.gate, low.up, low.down)))
    assert torch.equal(packed(kernel, low), packed(kernel, wide))


@by_dtype
@pytest.mark.parametrize("shape", [ExpertShape(2048, 768), ExpertShape(4096, 14336)])
def test_blocks_are_as_dense_as_the_simulator_believes(dtype: str, shape: ExpertShape) -> None:
    """Whichever kernel fills them; strips of int8 begin with scales that end at a line."""
    believed = weight_bytes(shape.values, dtype)
    for name in ("reference", "auto"):
        assert believed <= make_kernel(shape, dtype, name).block_bytes < 1.005 * believed


@by_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_block_is_laid_out_as_documented(dtype: str, shape: ExpertShape) -> None:
    kernel, weights = QuantizedKernel(shape, dtype), expert(shape)
    memory = torch.full((3, kernel.block_bytes), 255, dtype=torch.uint8)
    kernel.pack(weights, memory[1])
    assert kernel.block_bytes % ALIGNMENT == 0
    assert bool((memory[[0, 2]] == 255).all()), "packing wrote outside its block"
    matrices = (torch.cat((weights.gate, weights.up)), weights.down)
    expected = torch.cat([round_trip(matrix, dtype)[0].flatten() for matrix in matrices])
    assert torch.equal(read_block(shape, dtype, memory[1]), expected)


@by_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16, torch.float16])
def test_compute_is_the_reference_on_dequantised_weights(
    dtype: str, shape: ExpertShape, precision: torch.dtype
) -> None:
    kernel = QuantizedKernel(shape, dtype)
    block = packed(kernel, expert(shape))
    values = read_block(shape, dtype, block).to(precision)
    hidden, scale = normal(9, shape.hidden, seed=7).to(precision), normal(9, 1, seed=8)
    expected = feed_forward(shape, values, hidden).float() * scale
    near = 4 * torch.finfo(precision).eps * float(expected.abs().max())
    out = torch.ones(9, shape.hidden)
    kernel.compute(block, hidden, None, scale, out)
    assert torch.allclose(out - 1.0, expected, rtol=0, atol=near + 1e-6)
    rows = torch.tensor([7, 0, 4])
    gathered = torch.zeros(9, shape.hidden)
    kernel.compute(block, hidden, rows, scale[rows], gathered)
    assert torch.allclose(gathered[rows], expected[rows], rtol=0, atol=near)
    assert not gathered[[1, 2, 3, 5, 6, 8]].any()


@by_dtype
def test_pieces_change_rounding_only(dtype: str) -> None:
    """One row at a time, some rows with some left over, all of them."""
    shape = ExpertShape(131, 77)
    hidden, results = normal(5, 131), []
    for piece in (1, 1000, 1 << 22):
        kernel = QuantizedKernel(shape, dtype, piece_weights=piece)
        out = torch.zeros(5, 131)
        kernel.compute(packed(kernel, expert(shape)), hidden, None, torch.ones(5, 1), out)
        results.append(out)
    largest = float(results[2].abs().max())
    assert largest > 1.0
    assert torch.allclose(results[0], results[2], rtol=0, atol=1e-6 * largest)
    assert torch.allclose(results[1], results[2], rtol=0, atol=1e-6 * largest)


@pytest.mark.parametrize(("dtype", "low", "high"), [("int8", 0.005, 0.015), ("int4", 0.1, 0.2)])
def test_an_expert_is_wrong_by_its_weights_errors(dtype: str, low: float, high: float) -> None:
    """Three matrices with independent errors of the documented size: times the root of 3."""
    shape = ExpertShape(256, 256)
    weights, hidden = expert(shape), normal(32, 256, seed=9)
    outs = []
    for kernel in (ReferenceKernel(shape, "fp32"), QuantizedKernel(shape, dtype)):
        block, out = torch.empty(kernel.block_bytes, dtype=torch.uint8), torch.zeros(32, 256)
        kernel.pack(weights, block)
        kernel.compute(block, hidden, None, torch.ones(32, 1), out)
        outs.append(out)
    assert low < (outs[1] - outs[0]).norm() / outs[0].norm() < high


@by_dtype
def test_threads_may_share_a_kernel(dtype: str) -> None:
    shape = ExpertShape(192, 160)
    kernel = QuantizedKernel(shape, dtype)
    blocks = [packed(kernel, expert(shape, seed)) for seed in range(4)]
    hidden = normal(3, 192)

    def part(block: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(3, 192)
        kernel.compute(block, hidden, None, torch.ones(3, 1), out)
        return out

    alone = [part(block) for block in blocks]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(part, blocks * 20))
    assert all(torch.equal(got, alone[n % 4]) for n, got in enumerate(together))


@by_dtype
@pytest.mark.parametrize("name", ["gate", "up", "down"])
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_weights_that_are_no_numbers_are_refused(dtype: str, name: str, value: float) -> None:
    shape = ExpertShape(131, 77)
    weights = expert(shape)
    getattr(weights, name)[3, 70] = value
    kernel = QuantizedKernel(shape, dtype)
    with pytest.raises(BrokenWeights, match=f"{dtype} .* {name} matrix has infinities or nan"):
        packed(kernel, weights)


def test_our_own_mistakes_are_noticed() -> None:
    with pytest.raises(AssertionError, match="tanh"):
        QuantizedKernel(ExpertShape(12, 20, "tanh"), "int8")
    kernel = QuantizedKernel(ExpertShape(5, 3), "int8")
    with pytest.raises(AssertionError, match=f"{kernel.block_bytes} bytes"):
        kernel.pack(expert(kernel.shape), torch.empty(kernel.block_bytes + 64, dtype=torch.uint8))


@pytest.mark.parametrize("dtype", EXPERT_DTYPES)
@pytest.mark.parametrize("name", ["reference", "auto"])
def test_every_offered_precision_has_a_kernel(dtype: str, name: str) -> None:
    kernel = make_kernel(ExpertShape(12, 20), dtype, name)
    assert kernel.dtype == dtype
    assert kernel.workspace(100) > kernel.workspace(1)
