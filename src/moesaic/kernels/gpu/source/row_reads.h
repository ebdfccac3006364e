// Products with one token: weights [outputs, inputs] in bf16 are read at memory speed.
//
// A warp computes one output at a time. Its first reads are issued before the kernel waits for the one in front of it:
// weights do not depend on it.
#pragma once

#include "numbers.h"
#include "reads.h"

// `Most`: 16-byte reads that a lane has under way.
template <int Inputs, int Most = 16>
struct RowReads {
  static constexpr int loads = (Inputs + 255) / 256;        // of 8 values per lane
  static constexpr int ahead = loads < Most ? loads : Most;
  uint4 words[ahead];

  __device__ __forceinline__ void read(const u16* row) {
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      const int at = (i * 32 + threadIdx.x % 32) * 8;
      if (at < Inputs) words[i] = read_once(reinterpret_cast<const uint4*>(row + at));
    }
  }

  // The whole row times inputs in shared memory; every lane gets the sum.
  __device__ __forceinline__ float dot(const u16* row, const float* inputs) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < loads; ++i) {
      const int at = (i * 32 + threadIdx.x % 32) * 8;
      if (at >= Inputs) break;
      const uint4 w = i < ahead ? words[i < ahead ? i : 0] : *reinterpret_cast<const uint4*>(row + at);
      const float4 low = *reinterpret_cast<const float4*>(inputs + at), high = *reinterpret_cast<const float4*>(inputs + at + 4);
      sum += wide(u16(w.x)) * low.x + wide(u16(w.x >> 16)) * low.y + wide(u16(w.y)) * low.z + wide(u16(w.y >> 16)) * low.w;
      sum += wide(u16(w.z)) * high.x + wide(u16(w.z >> 16)) * high.y + wide(u16(w.w)) * high.z + wide(u16(w.w >> 16)) * high.w;
    }
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    return sum;
  }
};

// One token's `x` times row `output` of a matrix, for every lane of a warp; every thread of a block calls it. Weights are
// read before the kernel in front of this one has ended.
template <int Inputs>
__device__ __forceinline__ float row_dot(const u16* x, const u16* weights, int output, int outputs) {
  __shared__ __align__(16) float inputs[Inputs];
  const u16* row = weights + i64(output) * Inputs;
  RowReads<Inputs> reads;
  if (output < outputs) reads.read(row);
  await_previous();
  release_next();
  for (int i = threadIdx.x; i < Inputs; i += 256) inputs[i] = wide(x[i]);
  __syncthreads();
  return output < outputs ? reads.dot(row, inputs) : 0.0f;
}
