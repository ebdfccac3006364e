// Between the projections and the attention of latent layers. Compiled at run time for one model; every constant in
// capitals is a macro: HEADS, HEAD_WIDTH of a query, ROPE_DIM of it at its end, RANK of a latent, LATENT_EPS of its
// norm, INTERLEAVED. Rounding follows models/rope.py and models/norm.py.

#include "device.h"
#include "numbers.h"

constexpr int HALF = ROPE_DIM / 2;
constexpr int BLOCK = 128;

// The value at `at` of ROPE_DIM values, turned; `turn`: HALF cosines, then HALF sines.
__device__ __forceinline__ float turned_value(const u16* from, int at, const float* turn) {
#if INTERLEAVED
  const float even = wide(from[at & ~1]), odd = wide(from[at | 1]), cos = turn[at / 2], sin = turn[HALF + at / 2];
  return at & 1 ? odd * cos + even * sin : even * cos - odd * sin;
#else
  // Products are rounded before they are added, as PyTorch's bf16 tensors are.
  const int pair = at % HALF;
  const float first = wide(from[pair]), second = wide(from[pair + HALF]);
  const float cos = rounded(turn[pair]), sin = rounded(turn[HALF + pair]);
  return at < HALF ? rounded(first * cos) - rounded(second * sin) : rounded(second * cos) + rounded(first * sin);
#endif
}

// Turns the rotary parts of queries and of the key that all heads share, normalises the latent, and writes latent and
// key into their caches [slots, max_length, RANK or ROPE_DIM]. A block of BLOCK threads per token and head, and one more
// for latent and key: grid [HEADS + 1, tokens]. `query` [tokens, HEADS, HEAD_WIDTH]; `compressed` [tokens, RANK +
// ROPE_DIM]; `turned` [tokens, HEADS, ROPE_DIM]. Tokens beyond `active` leave the caches as they are.
extern "C" __global__ void turn_store(const u16* query, const u16* compressed, const u16* norm, const float* turns,
                                      const i64* slots, const i64* positions, const i64* active, u16* turned,
                                      u16* latents, u16* keys, i64 max_length) {
  await_previous();
  release_next();
  const i64 token = blockIdx.y, position = positions[token];
  const int head = blockIdx.x;
  const float* turn = turns + position * ROPE_DIM;
  if (head < HEADS) {
    const i64 row = token * HEADS + head;
    const u16* from = query + row * HEAD_WIDTH + HEAD_WIDTH - ROPE_DIM;
    for (int at = threadIdx.x; at < ROPE_DIM; at += BLOCK) turned[row * ROPE_DIM + at] = to_bf16(turned_value(from, at, turn));
    return;
  }
  if (token >= *active) return;
  const u16* from = compressed + token * (RANK + ROPE_DIM);
  const i64 cached = slots[token] * max_length + position;
  float square = 0;
  for (int at = threadIdx.x; at < RANK; at += BLOCK) square += wide(from[at]) * wide(from[at]);
  const float scale = rsqrtf(block_sum(square) / RANK + LATENT_EPS);
  for (int at = threadIdx.x; at < RANK; at += BLOCK)
    latents[cached * RANK + at] = to_bf16(wide(norm[at]) * rounded(wide(from[at]) * scale));
  for (int at = threadIdx.x; at < ROPE_DIM; at += BLOCK)
    keys[cached * ROPE_DIM + at] = to_bf16(turned_value(from + RANK, at, turn));
}
