"""Where tokens lie in a KV cache of blocks, for Triton kernels."""

from __future__ import annotations

import triton
import triton.language as tl

from moesaic.model_info.kv_blocks import KV_BLOCK

_BLOCK = tl.constexpr(KV_BLOCK)


@triton.jit
def row_of(blocks, position):
    """Of one position of the sequence that has these blocks, in order."""
    block = position // _BLOCK
    return (tl.load(blocks + block).to(tl.int64) - block) * _BLOCK + position


@triton.jit
def rows_from(blocks, start, COUNT: tl.constexpr):
    """Of COUNT positions from `start` on: COUNT divides a block, `start` is a multiple of it."""
    return row_of(blocks, start) + tl.arange(0, COUNT)
