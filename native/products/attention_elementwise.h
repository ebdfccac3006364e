// The softmax between the two products of attention, and the sums of its results over blocks. In vectors of
// the instruction set's width: compilers compare wider ones element by element. Internal linkage, as in
// elementwise.h.
#pragma once

#if defined(__AVX512BW__)
#include "products/avx512_elementwise.h"
#endif
#include "products/attention_packing.h"
#include "products/step_elementwise.h"

namespace moesaic {
namespace {

constexpr int kScoreVectors = kKeyBlock / kLanes;
constexpr float kLowestScore = -3.4028235e38f;

inline Floats all_lanes(float x) { return Floats{} + x; }

#if defined(__AVX512BW__)
using Seen = __mmask16;
inline Seen seen_lanes(std::uint64_t bits) { return Seen(bits); }
inline Floats where(Seen seen, Floats yes, Floats no) {
  return (Floats)_mm512_mask_blend_ps(seen, (__m512)no, (__m512)yes);
}
inline Floats max_of(Floats a, Floats b) { return (Floats)_mm512_max_ps((__m512)a, (__m512)b); }
inline float top_of_lanes(Floats v) { return _mm512_reduce_max_ps((__m512)v); }
inline float sum_of_lanes(Floats v) { return _mm512_reduce_add_ps((__m512)v); }
// Of what is not above 0; max() returns its second operand if one is NaN.
inline Floats exp_below(Floats x) { return (Floats)exp_fast(_mm512_max_ps(_mm512_set1_ps(-87.0f), (__m512)x)); }
#else
using Seen = Ints;
template <std::size_t... Lanes>
inline Seen seen_lanes(std::uint64_t bits, std::index_sequence<Lanes...>) {
  return (Words{(1u << Lanes)...} & std::uint32_t(bits)) != 0u;
}
inline Seen seen_lanes(std::uint64_t bits) { return seen_lanes(bits, std::make_index_sequence<kLanes>()); }
inline Floats where(Seen seen, Floats yes, Floats no) { return seen ? yes : no; }
inline Floats max_of(Floats a, Floats b) { return a > b ? a : b; }
inline float top_of_lanes(Floats v) {
  float top = v[0];
  for (int i = 1; i < kLanes; ++i) top = v[i] > top ? v[i] : top;
  return top;
}
inline float sum_of_lanes(Floats v) {
  float sums[kLanes];
  std::memcpy(sums, &v, sizeof sums);
  for (int step = kLanes / 2; step; step /= 2)
    for (int i = 0; i < step; ++i) sums[i] += sums[i + step];
  return sums[0];
}
// The same polynomial as `exponential` in elementwise.h, of what is not above 0.
inline Floats exp_below(Floats x) {
  x = max_of(x, all_lanes(-87.0f));
  const Floats shifter = all_lanes(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Floats t = multiply_add(x, all_lanes(1.44269504f), shifter), n = t - shifter;
  const Floats r = multiply_add(n, all_lanes(2.12194440e-4f), multiply_add(n, all_lanes(-0.693359375f), x));
  Floats p = all_lanes(1.9875691500e-4f);
  for (const float factor : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f,
                             5.0000001201e-1f})
    p = multiply_add(p, r, all_lanes(factor));
  p = multiply_add(p * r, r, r + 1.0f);
  return p * (Floats)(((Words)t - 0x4b400000u + 127u) << 23);
}
#endif

// Rounded to bf16. NaN need not stay NaN: it is in the row's sum.
inline void store_shares(const Floats* v, std::uint8_t* to) {
#if defined(__AVX512BF16__)
  _mm512_storeu_si512(to, narrow_bf16((__m512)v[0], (__m512)v[1]));
#else
  for (int i = 0; i < 32 / kLanes; ++i) {
    const Words bits = (Words)v[i];
    store(__builtin_convertvector((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16, Halves), to + i * kLanes * 2);
  }
#endif
}

// A row's shares of one block. `shrink` becomes its exponent; returns the sum of the shares, which is NaN if
// a score is not finite: the largest one may not be NaN then, and exp of -inf is a number.
template <bool Masked, bool Scaled>
[[gnu::always_inline]] inline float shares_of_row(const SoftmaxCall& call, int row) {
  Floats v[kScoreVectors], top = all_lanes(kLowestScore);
  Seen seen[kScoreVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kScoreVectors; ++i) {
    const int strip = i * kLanes / 16, within = i * kLanes % 16;
    v[i] = load<Floats>(call.scores + (std::size_t(strip) * call.rows + row) * 16 + within) * call.scale;
    if constexpr (Scaled) v[i] *= load<Floats>(call.scales->keys + i * kLanes);
    if constexpr (Masked) {
      seen[i] = seen_lanes(call.visible[row] >> (i * kLanes));
      v[i] = where(seen[i], v[i], all_lanes(kLowestScore));
    }
    top = max_of(v[i], top);
  }
  const float before = call.largest[row], now = top_of_lanes(top);
  const float largest = now > before ? now : before;
  Floats sum = {};
#pragma GCC unroll 16
  for (int i = 0; i < kScoreVectors; ++i) {
    sum = multiply_add(v[i], all_lanes(0.0f), sum);  // 0, or NaN
    v[i] = exp_below(v[i] - largest);
    if constexpr (Masked) v[i] = where(seen[i], v[i], Floats{});
    sum += v[i];
    if constexpr (Scaled) v[i] *= load<Floats>(call.scales->values + i * kLanes);
  }
  call.largest[row] = largest;
  call.shrink[row] = before - largest;
  std::uint8_t* to = call.shares + (row / 16 * (kKeyBlock / 32) * 16 + row % 16) * kRowBytes;
  store_shares(v, to);
  store_shares(v + kScoreVectors / 2, to + kTileBytes);
  return sum_of_lanes(sum);
}

template <bool Scaled>
inline void softmax_of_rows(const SoftmaxCall& call) {
  constexpr std::uint64_t kAll = ~std::uint64_t(0);
  for (int first = 0; first < call.rows; first += 16) {
    alignas(64) float added[16];
    for (int i = 0; i < 16; ++i) {
      const int row = first + i;
      added[i] = call.visible[row] == kAll ? shares_of_row<false, Scaled>(call, row)
                                           : shares_of_row<true, Scaled>(call, row);
      if (call.broken & call.visible[row]) added[i] = __builtin_nanf("");
    }
    for (int i = 0; i < 16; i += kLanes) {
      const Floats shrink = exp_below(load<Floats>(call.shrink + first + i));
      store(shrink, call.shrink + first + i);
      float* sums = call.sums + first + i;
      store(multiply_add(load<Floats>(sums), shrink, load<Floats>(added + i)), sums);
    }
  }
}

void attention_softmax(const SoftmaxCall& call) {
  call.scales ? softmax_of_rows<true>(call) : softmax_of_rows<false>(call);
}

void add_mixed(float* mixed, const float* added, const float* shrink, int rows, int strips) {
  for (int s = 0; s < strips; ++s)
    for (int row = 0; row < rows; ++row)
      for (int i = 0; i < 16; i += kLanes, mixed += kLanes, added += kLanes)
        store(multiply_add(load<Floats>(mixed), all_lanes(shrink[row]), load<Floats>(added)), mixed);
}

void divide_row(const float* mixed, std::size_t stride, float sum, int width, std::uint16_t* out) {
  for (int i = 0; i < width; i += 16, mixed += stride) store_some(load_f32(mixed) / sum, width - i, out + i);
}

const AttentionKernels attention_kernels = {pack_keys,  pack_values, attention_softmax, add_mixed,
                                             divide_row, round_codes, widen_codes,       widen_scales};

}  // namespace
}  // namespace moesaic
