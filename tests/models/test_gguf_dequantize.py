"""Are dequantized values ggml's, to the bit? Held against the `gguf` package on random blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize as reference

from moesaic.model_info.gguf.tensor_types import OTHERS, TYPES
from moesaic.models.checkpoints.gguf.dequantize import FLOATS, dequantize

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
