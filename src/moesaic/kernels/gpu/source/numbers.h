// Rounding to bf16, and sums over a block.
#pragma once

#include "device.h"

__device__ __forceinline__ float wide(u16 half) { return __uint_as_float(u32(half) << 16); }
__device__ __forceinline__ u16 to_bf16(float value) {
  const u32 bits = __float_as_uint(value);
  if (value != value) return u16(bits >> 16 | 0x40);
  return u16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
__device__ __forceinline__ float rounded(float value) { return wide(to_bf16(value)); }

// Of all threads of a block (at most 1024).
__device__ float block_sum(float value) {
  __shared__ float sums[32];
  for (int step = 16; step; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  value = threadIdx.x % 32 < blockDim.x / 32 ? sums[threadIdx.x % 32] : 0.0f;
  for (int step = 16; step; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}
