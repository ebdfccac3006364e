"""Are dequantized values those of the reference implementations, to the bit?"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize as reference
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import quantized_models
from moesaic.model_info.gguf.tensor_types import OTHERS, TYPES
from moesaic.model_info.quantization.kinds import (
    Awq,
    Gptq,
    Mxfp4,
    PackedIntegers,
    Quantization,
    Scaled,
)
from moesaic.models.checkpoints.gguf.dequantize import FLOATS, dequantize
from moesaic.models.checkpoints.quantized.checkpoint import layout_of
from moesaic.models.checkpoints.quantized.layout import Unfit
from quantized_models import BLOCK, FORMS, GROUP

KINDS: dict[str, Quantization] = {
    "fp8": Scaled("F8_E4M3", "_scale_inv", *BLOCK),
    "fp8-whole": Scaled("F8_E4M3", "_scale_inv", None, None),
    "gptq": Gptq(4, GROUP, 1),
    "gptq-no-index": Gptq(4, GROUP, 1),
    "gptq-v2": Gptq(4, GROUP, 0),
    "gptq-8": Gptq(8, GROUP, 1),
    "awq": Awq(GROUP),
    "packed": PackedIntegers(4, GROUP, symmetric=False),
    "packed-symmetric": PackedIntegers(4, GROUP, symmetric=True),
    "packed-8": PackedIntegers(8, GROUP, symmetric=False),
    "float-rows": Scaled("F8_E4M3", "_scale", 1, None),
    "float-blocks": Scaled("F8_E4M3", "_scale", *BLOCK),
    "int-rows": Scaled("I8", "_scale", 1, None),
}


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def dequantized(form: Quantization, parts: dict[str, torch.Tensor], *shape: int) -> torch.Tensor:
    layout = layout_of(form)
    found = layout.parts("x.weight", shape, parts)
    for part in found.values():
        assert tuple(parts[part.name].shape) == part.shape, part
    fresh = {role: _as_read(parts[part.name]) for role, part in found.items()}
    return layout.dequantize(fresh, shape)


def _as_read(tensor: torch.Tensor) -> torch.Tensor:
    """With the strides of a tensor that comes from a file."""
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(8, 8), (40, 88), (24, 16)])
def test_values_are_those_that_were_packed(form: str, shape: tuple[int, int]) -> None:
    stored = FORMS[form].store("x.weight", random(*shape))
    assert torch.equal(dequantized(KINDS[form], stored.parts, *shape), stored.values)


def test_widths_that_do_not_fill_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 20 weights, one group, 13 rows: both are padded in the file."""
    monkeypatch.setattr(quantized_models, "GROUP", 20)
    stored = quantized_models.packed("x.weight", random(13, 20))
    form = PackedIntegers(4, None, symmetric=False)
    assert torch.equal(dequantized(form, stored.parts, 13, 20), stored.values)


def test_an_order_that_was_never_set_is_that_of_the_columns() -> None:
    """compressed-tensors leaves -1 for a matrix that no calibration token has reached, as happens
    to rarely chosen experts, and reads it so."""
    stored = FORMS["packed"].store("x.weight", random(16, 32))
    unset = {"x.weight_g_idx": torch.full((32,), -1, dtype=torch.int32)}
    found = dequantized(KINDS["packed"], stored.parts | unset, 16, 32)
    assert torch.equal(found, stored.values)


def test_many_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moesaic.models.checkpoints.quantized.packing._AT_ONCE", 100)
    stored = FORMS["gptq"].store("x.weight", random(40, 88))
    assert torch.equal(dequantized(KINDS["gptq"], stored.parts, 40, 88), stored.values)


@pytest.mark.parametrize("scales", [torch.float32, torch.bfloat16])
def test_blocks_of_fp8_are_those_of_transformers(scales: torch.dtype) -> None:
    numbers = random(256, 384).to(torch.float8_e4m3fn)
    factors = (random(2, 3).abs() + 0.1).to(scales)
    reference = Fp8Dequantize(None)._dequantize_one(numbers, factors, torch.float32)
    parts = {"x.weight": numbers, "x.weight_scale_inv": factors}
    form = Scaled("F8_E4M3", "_scale_inv", 128, 128)
    assert torch.equal(dequantized(form, parts, 256, 384), reference)


def test_mxfp4_without_a_number_is_refused() -> None:
    """OCP Microscaling: the scale 0xFF is NaN."""
    parts = {
        "blocks": torch.ones(4, 2, 16, dtype=torch.uint8),
        "scales": torch.full((4, 2), 127, dtype=torch.uint8),
    }
    layout = layout_of(Mxfp4())
    assert layout.dequantize(parts, (64, 4)).isfinite().all()
    parts["scales"][3, 1] = 0xFF
    with pytest.raises(Unfit, match="0xFF, which means that its block is no number"):
        layout.dequantize(parts, (64, 4))


def test_mxfp4_is_that_of_transformers() -> None:
    generator = torch.Generator().manual_seed(5)
    experts, inputs, outputs = 3, 64, 20
    blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), generator=generator)
    scales = torch.randint(100, 150, (experts, outputs, inputs // 32), generator=generator)
    blocks, scales = blocks.to(torch.uint8), scales.to(torch.uint8)
    reference = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    layout = layout_of(Mxfp4())
    parts = layout.parts("experts.down_proj", (experts, inputs, outputs), ())
    assert parts["blocks"][:2] == ("experts.down_proj_blocks", tuple(blocks.shape))
    assert parts["scales"][:2] == ("experts.down_proj_scales", tuple(scales.shape))
    for expert in range(experts):
        one = {"blocks": blocks[expert], "scales": scales[expert]}
        assert torch.equal(layout.dequantize(one, (inputs, outputs)), reference[expert])


# Are dequantized values ggml's, to the bit? Held against the `gguf` package on random blocks.

BLOCKED = [number for number, kind in TYPES.items() if kind.name not in FLOATS]


def test_types_are_numbered_and_sized_as_the_format_says() -> None:
    for number, kind in TYPES.items():
        assert GGMLQuantizationType(number).name == kind.name
        assert GGML_QUANT_SIZES[GGMLQuantizationType(number)] == (kind.weights, kind.bytes)
    for number, name in OTHERS.items():
        assert GGMLQuantizationType(number).name == name


def test_every_type_is_named_once() -> None:
    known = {kind.value for kind in GGMLQuantizationType}
    assert known - TYPES.keys() - OTHERS.keys() == set()


@pytest.mark.parametrize("number", BLOCKED, ids=[TYPES[number].name for number in BLOCKED])
def test_random_blocks(number: int) -> None:
    """Every byte is random: also scales that are subnormal, infinite or NaN."""
    kind = TYPES[number]
    data = np.random.default_rng(number).integers(0, 256, (6000, kind.bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = torch.from_numpy(reference(data, GGMLQuantizationType(number)))
    found = dequantize(torch.from_numpy(data.reshape(-1)), kind).view(expected.shape)
    same = (found == expected) | (found.isnan() & expected.isnan())
    assert same.all()
    assert found.isfinite().float().mean() > 0.9


@pytest.mark.parametrize("number", [0, 1, 30])
def test_floats_are_as_stored(number: int) -> None:
    kind = TYPES[number]
    data = np.random.default_rng(number).integers(0, 256, 4096, dtype=np.uint8)
    found = dequantize(torch.from_numpy(data), kind)
    assert found.dtype == FLOATS[kind.name]
    assert found.view(torch.uint8).numpy().tobytes() == data.tobytes()
