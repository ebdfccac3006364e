// A router's logits to experts and weights: what its kernels share. Included where `rounded` and INFINITY are known.
#pragma once

constexpr int PER_LANE = (EXPERTS + 31) / 32;

// What a token's choice is written to: pinned memory.
struct Choice {
  i64* ids;         // [TOP_K]
  float* weights;   // [TOP_K]
  i64* ranked;      // [RANKS]
  float* scores;    // [RANKS]
};

__device__ __forceinline__ Choice of_token(i64 token, i64* ids, float* weights, i64* ranked, float* scores) {
  return {ids + token * TOP_K, weights + token * TOP_K, ranked + token * RANKS, scores + token * RANKS};
}

__device__ void softmax_or_sigmoid(float (&scores)[PER_LANE]) {
  const int lane = threadIdx.x % 32;
#if SIGMOID
  for (int i = 0; i < PER_LANE; ++i) scores[i] = 1 / (1 + expf(-scores[i]));
#else
  float top = -INFINITY, sum = 0;
  for (int i = 0; i < PER_LANE; ++i) top = fmaxf(top, scores[i]);
  for (int step = 16; step; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
  for (int i = 0; i < PER_LANE; ++i) sum += scores[i] = lane + 32 * i < EXPERTS ? expf(scores[i] - top) : 0.0f;
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  for (int i = 0; i < PER_LANE; ++i) scores[i] /= sum;
#endif
}

struct Best {
  int expert;  // EXPERTS: there is none
  float score;
};

// Numbers in the order of floats, above 0; 0 for what is not chosen: minus infinity, and no number.
__device__ __forceinline__ u32 ordered(float value) {
  if (!(value > -INFINITY)) return 0;
  const u32 bits = __float_as_uint(value + 0.0f);  // -0 is 0
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// The best that is left, the lower number among equals; takes it out. One warp.
__device__ __forceinline__ Best take_best(float (&preference)[PER_LANE], const float (&scores)[PER_LANE]) {
  const int lane = threadIdx.x % 32;
  float best = -INFINITY, score = 0;
  int expert = EXPERTS;
  for (int i = 0; i < PER_LANE; ++i)
    if (preference[i] > best) best = preference[i], expert = lane + 32 * i, score = scores[i];
  const u32 mine = ordered(best), most = __reduce_max_sync(~0u, mine);
  expert = int(__reduce_min_sync(~0u, most && mine == most ? u32(expert) : u32(EXPERTS)));
  score = __shfl_sync(~0u, score, expert % 32);
  if (expert == EXPERTS) score = 0;
  for (int i = 0; i < PER_LANE; ++i)
    if (lane + 32 * i == expert) preference[i] = -INFINITY;
  return {expert, score};
}

// What experts are chosen by: scores, with a bias where there is one.
__device__ __forceinline__ void prefer(const float (&scores)[PER_LANE], const float* bias, float (&preference)[PER_LANE]) {
  for (int i = 0; i < PER_LANE; ++i) {
    const int expert = threadIdx.x % 32 + 32 * i;
    preference[i] = expert < EXPERTS ? scores[i] + (bias ? bias[expert] : 0.0f) : -INFINITY;
  }
}

// One warp chooses for one token: lane l has the logits of experts l, l + 32, ... (-infinity beyond the last). A token
// none of whose scores is a number gets some experts with weights that are none, so that its result is none, and goes
// on beside the others of its batch. It uses the `count` best experts, with weights as if there were no others; all are
// ranked.
__device__ void choose(float (&scores)[PER_LANE], const float* bias, int count, const Choice& to) {
  const int lane = threadIdx.x % 32;
  float preference[PER_LANE];
  softmax_or_sigmoid(scores);
  prefer(scores, bias, preference);
  bool broken = false;
  float mine = 0, total = 0;  // lane r keeps the score of rank r, as far as it is used
  for (int rank = 0; rank < RANKS; ++rank) {
    auto [expert, score] = take_best(preference, scores);
    broken |= rank == 0 && expert == EXPERTS;
    if (broken) expert = rank;
    if (rank < count) {
      total += score;
      if (lane == rank) mine = score;
    }
    if (lane == rank % 32) {
      to.ranked[rank] = expert, to.scores[rank] = score;
      if (rank < TOP_K) to.ids[rank] = rank < count ? expert : -1;
    }
  }
  if (lane < TOP_K) {
#if NORMALIZED
    mine /= total + (SIGMOID ? 1e-20f : 0.0f);
#endif
    mine *= FACTOR;
#if ROUND_WEIGHTS
    mine = rounded(mine);
#endif
    if (broken) mine = __int_as_float(0x7fffffff);
    to.weights[lane] = lane < count ? mine : 0.0f;
  }
}

// Another router's choice: its experts in order, with their weights and scores; `count` of them are used. One warp.
__device__ void repeat_choice(i64 token, const i64* ranked, const float* scores, const float* weights, int count,
                              const Choice& to) {
  for (int i = threadIdx.x % 32; i < RANKS; i += 32) {
    to.ranked[i] = ranked[token * RANKS + i], to.scores[i] = scores[token * RANKS + i];
    if (i >= TOP_K) continue;
    to.ids[i] = i < count ? ranked[token * RANKS + i] : -1;
    to.weights[i] = i < count ? weights[token * TOP_K + i] : 0.0f;
  }
}
