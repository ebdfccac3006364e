"""What a block of the native kernels is, and the native runner that reads such blocks: shape,
precision, instructions."""

from __future__ import annotations

import torch

from moesaic.kernels import _native
from moesaic.kernels.crossover import DEFAULT
from moesaic.kernels.instruction_sets import ISA_NUMBERS
from moesaic.model_info.expert_block import ALIGNMENT, block_bytes
from moesaic.model_info.expert_shape import ExpertShape

# The enums of native/include/moesaic_native.h.
DTYPES = {"bf16": 0, "int8": 1, "int4": 2}
FLOAT_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_pytorch_tanh": 2}


class NativeFormat:
    def __init__(
        self, shape: ExpertShape, dtype: str, isa: str, tiles_from: int | None = None
    ) -> None:
        self.shape, self.dtype, self.isa = shape, dtype, isa
        self.tiles_from = DEFAULT[dtype] if tiles_from is None else tiles_from
        self.block_bytes = block_bytes(dtype, shape.hidden, shape.intermediate)

    def runner(self, pool: _native.Pool) -> _native.Runner:
        shape = self.shape
        return _native.Runner(
            pool,
            DTYPES[self.dtype],
            shape.hidden,
            shape.intermediate,
            ACTIVATIONS[shape.activation],
            ISA_NUMBERS[self.isa],
            self.tiles_from,
        )


def check_block(kernel: NativeFormat, block: torch.Tensor) -> None:
    if block.dtype != torch.uint8 or block.dim() != 1 or not block.is_contiguous():
        raise ValueError("a block is one row of bytes")
    if len(block) < kernel.block_bytes:
        raise ValueError(f"a block has {kernel.block_bytes} bytes, this one {len(block)}")
    if block.data_ptr() % ALIGNMENT:
        raise ValueError(f"a block begins at a multiple of {ALIGNMENT} bytes")
