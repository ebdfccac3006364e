"""Does a change of how experts are laid out in memory also change the layout's name?

Packed files name their layout, and other releases compute from their bytes: who changes the bytes
must give the layout a new number (model_info/expert_block.py), then put the new digests here.
(Other codes for the same weights, which mean nearly the same, are no other layout.)
"""

from __future__ import annotations

from hashlib import sha256

import pytest
import torch
from packed_strips import pack_expert

from moesaic.kernels.base import ExpertWeights
from moesaic.kernels.choose import make_kernel
from moesaic.kernels.instruction_sets import native
from moesaic.model_info.expert_block import ROWS, STRIPS
from moesaic.model_info.expert_shape import ExpertShape

pytestmark = pytest.mark.without_native

SHAPE = ExpertShape(72, 40)  # fills no strip, tile or group
BITS = {"bf16": 16, "int8": 8, "int4": 4}
DIGESTS = {
    ("rows-1", "fp32"): "fc59928a11689adf",
    ("rows-1", "fp16"): "51af8a8b2d65c8b1",
    ("rows-1", "bf16"): "0766cd17fec01ab2",
    ("rows-1", "int8"): "0a12db9ebede63e9",
    ("rows-1", "int4"): "a12cb7a39741b00f",
    ("strips-1", "bf16"): "088ed24a1d681476",
    ("strips-1", "int8"): "5b5e432679593684",
    ("strips-1", "int4"): "3874ef61f482f632",
}


def weights() -> ExpertWeights:
    """Whole numbers in sevenths of a power of two: the same on every machine."""

    def matrix(rows: int, columns: int, step: int) -> torch.Tensor:
        values = torch.arange(rows * columns, dtype=torch.int64) * step % 1009 - 504
        return (values.float() / 256).view(rows, columns)

    return ExpertWeights(matrix(40, 72, 7), matrix(40, 72, 11), matrix(72, 40, 13))


def digest(block: torch.Tensor) -> str:
    return sha256(block.numpy().tobytes().rstrip(b"\0")).hexdigest()[:16]


@pytest.mark.parametrize("dtype", [dtype for layout, dtype in DIGESTS if layout == ROWS])
def test_rows(dtype: str) -> None:
    kernel = make_kernel(SHAPE, dtype, "reference")
    block = torch.zeros(kernel.block_bytes, dtype=torch.uint8)
    kernel.pack(weights(), block)
    assert digest(block) == DIGESTS[kernel.layout, dtype]


@pytest.mark.parametrize("dtype", BITS)
def test_strips_as_they_are_drawn(dtype: str) -> None:
    given = weights()
    block, _ = pack_expert(given.gate, given.up, given.down, BITS[dtype])
    assert digest(block) == DIGESTS[STRIPS, dtype]


@pytest.mark.skipif(native() is None, reason="the native kernels are not built here")
@pytest.mark.parametrize("dtype", BITS)
def test_strips_as_they_are_packed(dtype: str) -> None:
    kernel = make_kernel(SHAPE, dtype)
    raw = torch.zeros(kernel.block_bytes + 64, dtype=torch.uint8)
    block = raw[-raw.data_ptr() % 64 :][: kernel.block_bytes]
    kernel.pack(weights(), block)
    assert kernel.layout == STRIPS
    assert digest(block) == DIGESTS[STRIPS, dtype]
