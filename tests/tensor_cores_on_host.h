// As kernels/gpu/source/tensor_cores.h, for cuda_on_host.h: the lanes of a warp hand each other their operands.
#pragma once

#include "numbers.h"

inline u32 round_pair(float low, float high) { return to_bf16(low) | u32(to_bf16(high)) << 16; }
inline u32 fma_pair(u32 a, u32 b, u32 c) {
  const auto fused = [&](int shift) {
    return float(double(wide(u16(a >> shift))) * wide(u16(b >> shift)) + wide(u16(c >> shift)));
  };
  return round_pair(fused(0), fused(16));
}

static u32 operands[2][1024][6];

inline float element(const u32 (*lanes)[6], int lane, int word, int half) { return wide(u16(lanes[lane][word] >> 16 * half)); }
inline void multiply_add(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  const int turn = threads[current].shuffles++ % 2;
  u32* mine = operands[turn][current];
  for (int i = 0; i < 4; ++i) mine[i] = a[i];
  mine[4] = b0, mine[5] = b1;
  give_way();
  const u32(*lanes)[6] = operands[turn] + current / 32 * 32;
  const int g = current % 32 / 4, t = current % 4;
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 16; ++k) {
      const int column = 2 * t + i % 2, from = k % 8 / 2, upper = k / 8;
      c[i] += element(lanes, g * 4 + from, 2 * upper + i / 2, k % 2) * element(lanes, column * 4 + from, 4 + upper, k % 2);
    }
}
