// Codes of a word times their scale, two at a time, rounded once to bf16.
#pragma once

#include "tensor_cores.h"

// Two bytes of a word (2 half ... + 1), times a scale.
__device__ __forceinline__ u32 scaled_bytes(u32 word, int half, float scale) {
  const u32 shifted = word ^ 0x80808080u;  // below the exponent of 2^23, a byte is the number 2^23 + byte
  const float low = __uint_as_float(__byte_perm(shifted, 0x4b000000u, 0x7440 + 2 * half)) - 8388736.0f;
  const float high = __uint_as_float(__byte_perm(shifted, 0x4b000000u, 0x7440 + 2 * half + 1)) - 8388736.0f;
  return round_pair(low * scale, high * scale);
}

// Two nibbles of a word (pair i), times a scale that stands in both halves.
__device__ __forceinline__ u32 scaled_nibbles(u32 word, int i, u32 scale) {
  const u32 biased = (word >> (4 * i) & 0x000f000fu) | 0x43004300u;  // 128 + nibble
  return fma_pair(fma_pair(biased, 0x3f803f80u, 0xc308c308u), scale, 0x80008000u);  // less 136; times scale
}
