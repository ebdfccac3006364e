"""Do dense matrices in integers, as an accelerator keeps them, have the numbers of the CPU's?"""

from __future__ import annotations

import pytest
import torch

from moesaic.core.errors import BrokenWeights
from moesaic.kernels.instruction_sets import REFERENCE, available
from moesaic.kernels.quantize import FORMATS, dequantize, pack_codes, quantize
from moesaic.kernels.quantized_linear import DenseQuantizer, QuantizedWeight, stacked
from moesaic.kernels.quantized_matrix import pack_rows, unpack_rows
from moesaic.model_info.dense_bytes import DensePrecision
from moesaic.model_info.dense_rows import PIECE, SCRATCH, row_bytes, rows_bytes

NATIVE = [name for name in available() if name != REFERENCE]
SHAPES = [(5, 32), (7, 70), (3, 256), (4, 300), (2, 513)]


def packed(weight: torch.Tensor, dtype: str) -> QuantizedWeight:
    made = DenseQuantizer(DensePrecision.of(dtype)).pack(weight, dtype)
    assert made is not None
    return made


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", FORMATS)
def test_codes_are_kept_and_widened_as_experts_are(dtype: str, shape: tuple[int, int]) -> None:
    weight, form = torch.randn(shape), FORMATS[dtype]
    codes, scales = quantize(weight, form)
    rows = pack_rows(codes, form)
    assert rows.shape == (shape[0], row_bytes(form, shape[1]))
    assert torch.equal(unpack_rows(rows, shape[1], form), codes)
    kept = packed(weight, dtype)
    assert kept.nbytes == rows_bytes(dtype, *shape)
    for to in (torch.float32, torch.bfloat16, torch.float16):
        wanted = dequantize(pack_codes(codes, form), scales, shape[1], form, to)
        assert torch.equal(kept.widened(to), wanted)


@pytest.mark.skipif(not NATIVE, reason="no native kernels here")
@pytest.mark.parametrize("dtype", FORMATS)
def test_the_numbers_are_those_of_the_native_packing(dtype: str) -> None:
    from moesaic.kernels.native_linear import DenseRunner

    torch.manual_seed(0)
    weight = torch.randn(150, 320).bfloat16()
    native = DenseRunner(DensePrecision.of(dtype), NATIVE[0]).pack(weight, dtype)
    assert torch.equal(packed(weight, dtype).widened(), native.unpacked())


def test_where_an_input_is_in_a_row() -> None:
    """As the CUDA source reads it: nibble j of a word's lower half is input 2j, of its upper half
    input 2j + 1; padding has code 0."""
    inputs = 70
    codes = torch.randint(-8, 8, (3, inputs), dtype=torch.int8)
    words = pack_rows(codes, FORMATS["int4"]).view(torch.int32).long() & 0xFFFFFFFF
    assert words.shape == (3, 3 * 4)
    for at in range(12 * 8):
        nibble = words[:, at // 8] >> (at % 8 // 2 * 4 + at % 2 * 16) & 15
        wanted = codes[:, at].long() if at < inputs else torch.zeros(3, dtype=torch.long)
        assert torch.equal(nibble - 8, wanted), at


@pytest.mark.parametrize("dtype", FORMATS)
def test_products_in_pieces(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    weight, bias, x = torch.randn(50, 70), torch.randn(50), torch.randn(2, 3, 70)
    kept = packed(weight, dtype)
    wanted = x @ kept.widened().T + bias
    assert torch.allclose(kept(x, bias), wanted, atol=1e-5)
    monkeypatch.setattr("moesaic.kernels.quantized_linear.PIECE", 7 * 70)
    again = packed(weight, dtype)
    assert torch.equal(again.codes, kept.codes)
    assert torch.allclose(again(x, bias), wanted, atol=1e-5)
    assert kept(x.bfloat16(), bias.bfloat16()).dtype == torch.bfloat16


def test_the_scratch_is_one_for_all_and_no_larger_than_a_piece() -> None:
    quantizer = DenseQuantizer(DensePrecision.of("int4"))
    parts = [quantizer.pack(torch.randn(rows, 64), "int4") for rows in (20, 30)]
    whole = stacked([part for part in parts if part is not None])
    assert torch.equal(whole.widened()[20:], parts[1].widened())  # type: ignore[union-attr]
    cpu = torch.device("cpu")
    assert len(whole.scratch.on(cpu)) == 50 * 64
    assert whole.scratch.on(cpu) is whole.scratch.on(cpu)
    whole.scratch.need(1 << 20, 4096)
    assert len(whole.scratch.on(torch.device("meta"))) == SCRATCH > PIECE


def test_what_is_not_finite_is_refused() -> None:
    damaged = torch.randn(40, 70)
    damaged[3, 5] = torch.nan
    with pytest.raises(BrokenWeights, match="finite"):
        packed(damaged, "int4")
    assert DenseQuantizer(DensePrecision.of("bf16")).pack(damaged, "bf16") is None
