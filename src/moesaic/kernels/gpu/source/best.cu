// The best token of every row of logits: what greedy decoding needs of them.

#include "device.h"

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr u32 NOT_A_NUMBER = 0x10000, INFINITE = 0xff80, MINUS_INFINITE = 0x007f;

// bf16 in the order of numbers; what is none counts as the largest.
__device__ __forceinline__ u32 ordered(u16 half) {
  const u32 bits = half == 0x8000 ? 0 : half;  // -0 is 0
  if ((bits & 0x7fff) > 0x7f80) return NOT_A_NUMBER;
  return bits & 0x8000 ? ~bits & 0xffff : bits | 0x8000;
}

__device__ __forceinline__ u64 larger(u64 a, u64 b) { return a > b ? a : b; }

__device__ __forceinline__ u64 best_of_warp(u64 best) {
  for (int step = 16; step; step /= 2) best = larger(best, __shfl_xor_sync(~0u, best, step));
  return best;
}

// Of `logits` [rows, vocabulary] in bf16 the index of the largest, of equal ones the first, or -1 where that is not
// finite; `tokens` may be pinned memory. THREADS of a block look at a part of a row: grid [parts, rows]. `found` and
// `ended` [rows] are scratch, 0 before and after; the block that ends last tells.
extern "C" __global__ void __launch_bounds__(THREADS)
    best_tokens(const u16* logits, i64 vocabulary, u64* found, u32* ended, i64* tokens) {
  __shared__ u64 of_warps[WARPS];
  await_previous();
  release_next();
  const i64 row = blockIdx.y;
  const u16* from = logits + row * vocabulary;
  u64 best = 0;
#pragma unroll 8
  for (i64 at = i64(blockIdx.x) * THREADS + threadIdx.x; at < vocabulary; at += i64(gridDim.x) * THREADS)
    best = larger(best, u64(ordered(from[at])) << 32 | (~0u - u32(at)));
  best = best_of_warp(best);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  best = best_of_warp(threadIdx.x < WARPS ? of_warps[threadIdx.x] : 0);
  if (threadIdx.x) return;
  atomicMax(found + row, best);
  __threadfence();
  if (atomicAdd(ended + row, 1u) != gridDim.x - 1) return;
  __threadfence();
  best = atomicExch(found + row, 0ull);
  ended[row] = 0;
  const u32 value = u32(best >> 32);
  tokens[row] = value > MINUS_INFINITE && value < INFINITE ? i64(~0u - u32(best)) : -1;
}
