// The softmax between the two products of attention, and the sums of its results over blocks, in the
// compiler's vector extensions. Internal linkage, as in elementwise.h.
#pragma once

#if defined(__AVX512BW__)
#include "products/avx512_elementwise.h"
#endif
#include "products/attention_packing.h"
#include "products/step_elementwise.h"

namespace moesaic {
namespace {

constexpr int kScoreVectors = kKeyBlock / 16;
constexpr float kLowestScore = -3.4028235e38f;

#if defined(__AVX512BW__)
using Lanes16 = __mmask16;
inline Lanes16 lanes_of(std::uint64_t bits) { return Lanes16(bits); }
inline F16 choose(Lanes16 lanes, F16 yes, F16 no) {
  return (F16)_mm512_mask_blend_ps(lanes, (__m512)no, (__m512)yes);
}
inline F16 max_of(F16 a, F16 b) { return (F16)_mm512_max_ps((__m512)a, (__m512)b); }
inline float largest_of(F16 v) { return _mm512_reduce_max_ps((__m512)v); }
inline float sum_of_lanes(F16 v) { return _mm512_reduce_add_ps((__m512)v); }
// Of what is not above 0; max() returns its second operand if one is NaN.
inline F16 exp_below(F16 x) { return (F16)exp_fast(_mm512_max_ps(_mm512_set1_ps(-87.0f), (__m512)x)); }
inline void store_shares(F16 low, F16 high, std::uint8_t* to) {
  _mm512_storeu_si512(to, narrow_bf16((__m512)low, (__m512)high));
}
#else
using Lanes16 = I16;
inline Lanes16 lanes_of(std::uint64_t bits) {
  const U16 numbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return (((U16{} + std::uint32_t(bits)) >> numbers) & 1u) == 1u;
}
inline F16 choose(Lanes16 lanes, F16 yes, F16 no) { return select(lanes, yes, no); }
inline F16 max_of(F16 a, F16 b) { return larger(a, b); }
inline float largest_of(F16 v) {
  F8 a, b;
  std::memcpy(&a, &v, 32);
  std::memcpy(&b, reinterpret_cast<const char*>(&v) + 32, 32);
  a = a > b ? a : b;
  float top = a[0];
  for (int i = 1; i < 8; ++i) top = a[i] > top ? a[i] : top;
  return top;
}
inline float sum_of_lanes(F16 v) { return tree_sum(v); }
inline F16 exp_below(F16 x) { return exponential(x); }
inline void store_shares(F16 low, F16 high, std::uint8_t* to) {
  const H16 halves[2] = {to_bf16(low), to_bf16(high)};
  std::memcpy(to, halves, sizeof halves);
}
#endif

// A row's shares of one block. `shrink` becomes its exponent; returns the sum of the shares, which is NaN if
// a score is not finite: the largest one may not be NaN then, and exp of -inf is a number.
template <bool Masked>
[[gnu::always_inline]] inline float shares_of_row(const SoftmaxCall& call, int row) {
  F16 v[kScoreVectors];
  Lanes16 seen[kScoreVectors];
#pragma GCC unroll 4
  for (int s = 0; s < kScoreVectors; ++s) {
    v[s] = load_f32(call.scores + (std::size_t(s) * call.rows + row) * 16) * call.scale;
    if constexpr (Masked) {
      seen[s] = lanes_of(call.visible[row] >> (16 * s));
      v[s] = choose(seen[s], v[s], splat(kLowestScore));
    }
  }
  const float before = call.largest[row];
  const float top = largest_of(max_of(max_of(v[0], v[1]), max_of(v[2], v[3])));
  const float largest = top > before ? top : before;
  F16 sum = {};
#pragma GCC unroll 4
  for (int s = 0; s < kScoreVectors; ++s) {
    const F16 zero = v[s] * 0.0f;  // or NaN
    v[s] = exp_below(v[s] - largest);
    if constexpr (Masked) v[s] = choose(seen[s], v[s], F16{});
    sum += v[s] + zero;
  }
  call.largest[row] = largest;
  call.shrink[row] = before - largest;
  std::uint8_t* to = call.shares + (row / 16 * (kKeyBlock / 32) * 16 + row % 16) * kRowBytes;
  store_shares(v[0], v[1], to);
  store_shares(v[2], v[3], to + kTileBytes);
  return sum_of_lanes(sum);
}

void attention_softmax(const SoftmaxCall& call) {
  constexpr std::uint64_t kAll = ~std::uint64_t(0);
  for (int first = 0; first < call.rows; first += 16) {
    alignas(64) float added[16];
    for (int i = 0; i < 16; ++i) {
      const int row = first + i;
      added[i] = call.visible[row] == kAll ? shares_of_row<false>(call, row) : shares_of_row<true>(call, row);
      if (call.broken & call.visible[row]) added[i] = __builtin_nanf("");
    }
    const F16 shrink = exp_below(load_f32(call.shrink + first));
    store_f32(call.shrink + first, shrink);
    store_f32(call.sums + first, load_f32(call.sums + first) * shrink + load_f32(added));
  }
}

void add_mixed(float* mixed, const float* added, const float* shrink, int rows, int strips) {
  for (int s = 0; s < strips; ++s)
    for (int row = 0; row < rows; ++row, mixed += 16, added += 16)
      store_f32(mixed, load_f32(mixed) * shrink[row] + load_f32(added));
}

void divide_row(const float* mixed, std::size_t stride, float sum, int width, std::uint16_t* out) {
  for (int i = 0; i < width; i += 16, mixed += stride) store_some(load_f32(mixed) / sum, width - i, out + i);
}

const AttentionKernels attention_kernels = {pack_keys, pack_values, attention_softmax, add_mixed, divide_row};

}  // namespace
}  // namespace moesaic
