// Words of int8 or int4 codes times inputs in fp32.
#pragma once

#include "device.h"

// int4: a nibble u = code + 8 below the exponent of 128 is the bf16 number 128 + u. Two of them fill a word; taken as
// fp32, its upper one is off by (0x4300 + u of the lower one) / 65536, which the lower one's input makes up for: it is
// stored less 1/65536 of the upper one's. What is constant is subtracted once for several inputs.
constexpr float LOW_BIAS = 136.0f;
constexpr float HIGH_BIAS = 136.0f + 0.26171875f - 128.0f / 65536;

// What is stored of the lower one's input.
__device__ __forceinline__ float beside_high(float low, float high) { return low - high * (1.0f / 65536); }

// What to subtract for a pair of inputs, of which the lower one is stored so.
__device__ __forceinline__ float pair_bias(float stored, float high) {
  return LOW_BIAS * (stored + high * (1.0f / 65536)) + HIGH_BIAS * high;
}

// A word's codes times the inputs x; int4 with stored inputs, the bias included.
template <int Bits>
__device__ __forceinline__ float codes_dot(u32 word, const float* x) {
  float sum = 0;
  if constexpr (Bits == 8) {
    // A byte below the exponent of 2^23 is the fp32 number 2^23 + byte.
    const u32 shifted = word ^ 0x80808080u;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sum += (__uint_as_float(__byte_perm(shifted, 0x4b000000u, 0x7440 + i)) - 8388736.0f) * x[i];
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const u32 pair = (word >> (4 * i) & 0x000f000fu) | 0x43004300u;
      sum += __uint_as_float(pair << 16) * x[2 * i];
      sum += __uint_as_float(pair) * x[2 * i + 1];
    }
  }
  return sum;
}
