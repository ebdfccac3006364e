// What kernels over packed experts share (native/layout/expert_layout.h, kernels/gpu/table.py).
//
// Compiled at run time for one shape and precision; the macros HIDDEN, INTERMEDIATE, TOP_K, BITS and ACTIVATION are given
// by the caller. Kernels take a table and how many experts it has space for, which says where things are in it.
//
// A strip is a matrix of words [rows, 16]: word (p, n) has inputs PER_WORD * p + i of output n. Quantised strips begin
// with bf16 scales [groups, 16].
#pragma once

#include "activation.h"
#include "device.h"

constexpr int PER_WORD = 32 / BITS;
constexpr int TILE_INPUTS = BITS == 8 ? 64 : 32;
constexpr int GROUP = BITS == 8 ? 256 : 32;  // inputs per scale

constexpr int COUNT = 0, ARRIVING = 3, BLOCKS_AT = 8;  // words of a table
__device__ __forceinline__ i64 fills_at(i64 experts) { return BLOCKS_AT + experts; }
__device__ __forceinline__ i64 waits_at(i64 experts) { return BLOCKS_AT + 2 * experts; }
__device__ __forceinline__ i64 firsts_at(i64 experts) { return BLOCKS_AT + 3 * experts; }
__device__ __forceinline__ i64 rows_at(i64 experts) { return BLOCKS_AT + 4 * experts + 1; }

__host__ __device__ constexpr int divide_up(int a, int b) { return (a + b - 1) / b; }

template <int Inputs>
struct Strip {
  static constexpr int rows = divide_up(Inputs, TILE_INPUTS) * TILE_INPUTS / PER_WORD;
  static constexpr int scale_words = BITS == 16 ? 0 : divide_up(divide_up(Inputs, GROUP) * 32, 64) * 16;
  static constexpr int words = scale_words + rows * 16;
  static constexpr int inputs = rows * PER_WORD;  // with padding
};

using Up = Strip<HIDDEN>;
using Down = Strip<INTERMEDIATE>;
constexpr int UP_STRIPS = divide_up(INTERMEDIATE, 16);
constexpr i64 DOWN_AT = i64(2) * UP_STRIPS * Up::words;

__device__ __forceinline__ float low_half(u32 word) { return __uint_as_float(word << 16); }
__device__ __forceinline__ float high_half(u32 word) { return __uint_as_float(word & 0xffff0000u); }

// Round to nearest even.
__device__ __forceinline__ u16 to_bf16(float value) {
  const u32 bits = __float_as_uint(value);
  return u16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Until the copy that brings the block has ended: its ticket is written behind the block's bytes.
__device__ __forceinline__ void await_copy(const i64* table, u32 ticket) {
  if (threadIdx.x == 0) {
    const volatile u32* flag = reinterpret_cast<const volatile u32*>(table[1]);
    while (int(*flag - ticket) < 0) __nanosleep(200);
    __threadfence_system();
  }
  __syncthreads();
}
