// Where a token lies in a KV cache of blocks: the row among all blocks', by the blocks of its sequence in order.
#pragma once

#include "device.h"

constexpr int KV_BLOCK = 64;  // tokens of a block (model_info/kv_blocks.py)

__device__ __forceinline__ i64 cached_row(const int* blocks, i64 position) {
  return i64(blocks[position / KV_BLOCK]) * KV_BLOCK + position % KV_BLOCK;
}
