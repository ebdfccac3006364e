// Attention of one new token over the KV cache, bf16 or codes: in vectors of the instruction set's width, of which as
// many are summed at once as one has lanes. Internal linkage, as in elementwise.h.
#pragma once

#include <type_traits>
#include <utility>

#include "products/elementwise.h"
#include "products/kv_codes.h"
#include "products/step_kernels.h"

namespace moesaic {
namespace {

constexpr int kMostHeads = kLanes / 2;  // that share what is loaded of the cache

inline Floats widened(const std::uint16_t* from) { return widened_bf16(from); }
inline Floats widened(const std::int8_t* from) { return widened_codes(from); }
inline Floats widened(const float* from) { return load<Floats>(from); }

// The first `left` values, then zeros.
template <class Element>
inline Floats widened_some(const Element* from, int left) {
  Element some[kLanes] = {};
  std::memcpy(some, from, std::size_t(left) * sizeof(Element));
  return widened(some);
}

// Lane i of what is left has lane i's share of v[i] and of the vector half of `Count` further on: with Count from
// kLanes to 2, lane i ends as the sum of all lanes of v[i].
template <int Count, std::size_t... Lanes>
[[gnu::always_inline]] inline void fold(Floats* v, std::index_sequence<Lanes...>) {
  constexpr int kHalf = Count / 2;
  const Ints own = {(Lanes & kHalf ? int(kLanes + Lanes) : int(Lanes))...};
  const Ints other = {(Lanes & kHalf ? int(kLanes + Lanes - kHalf) : int(Lanes + kHalf))...};
#pragma GCC unroll 8
  for (int i = 0; i < kHalf; ++i)
    v[i] = __builtin_shuffle(v[i], v[i + kHalf], own) + __builtin_shuffle(v[i], v[i + kHalf], other);
}
[[gnu::always_inline]] inline Floats sums_of_lanes(Floats* v) {
  constexpr auto kAll = std::make_index_sequence<kLanes>();
  if constexpr (kLanes > 8) fold<16>(v, kAll);
  if constexpr (kLanes > 4) fold<8>(v, kAll);
  fold<4>(v, kAll);
  fold<2>(v, kAll);
  return v[0];
}

// Calls of(H, head) for all heads, H at a time: a constant, as large as it goes.
template <int H = kMostHeads, class Of>
[[gnu::always_inline]] inline void by_heads(int heads, int head, const Of& of) {
  for (; head + H <= heads; head += H) of(std::integral_constant<int, H>(), head);
  if constexpr (H > 1) by_heads<H / 2>(heads, head, of);
}

// The products of H queries with as many rows of the cache as make up a vector of sums, [head][position].
template <int H, class Element>
[[gnu::always_inline]] inline Floats dots(const float* queries, const Element* keys, std::size_t stride, int width) {
  constexpr int kPositions = kLanes / H;
  Floats sums[kLanes] = {};
  const auto add = [&](int d, const auto& of) {
    Floats query[H];
#pragma GCC unroll 8
    for (int h = 0; h < H; ++h) query[h] = of(queries + std::size_t(h) * width + d);
#pragma GCC unroll 16
    for (int p = 0; p < kPositions; ++p) {
      const Floats key = of(keys + p * stride + d);
#pragma GCC unroll 8
      for (int h = 0; h < H; ++h) sums[h * kPositions + p] = multiply_add(query[h], key, sums[h * kPositions + p]);
    }
  };
  int d = 0;
  for (; d + kLanes <= width; d += kLanes) add(d, [](const auto* from) { return widened(from); });
  if (d < width) add(d, [left = width - d](const auto* from) { return widened_some(from, left); });
  return sums_of_lanes(sums);
}

// One part of all scores. Beyond the end of the sequence, which is within a block, rows count that mean nothing.
template <bool Add, class Element>
void scores_of_part(const AttentionCall& call, const AttentionCall::Part& part, const Element* keys, int padded) {
  by_heads(call.heads, 0, [&](auto heads, int head) {
    constexpr int H = heads, kPositions = kLanes / H;
    const float* queries = part.queries + std::size_t(head) * part.width;
    for (int p = 0; p < call.positions; p += kPositions) {
      const std::size_t row = cache_row(call.table, call.first + p);  // the others follow in the same block
      float found[kLanes];
      store(dots<H>(queries, keys + row * part.keys.stride, part.keys.stride, part.width), found);
      for (int h = 0; h < H; ++h) {
        float* to = call.scores + std::size_t(head + h) * padded + p;
        for (int i = 0; i < kPositions; ++i) to[i] = found[h * kPositions + i] + (Add ? to[i] : 0.0f);
      }
    }
  });
}

// The scales of a call's rows, in the memory behind its scores.
inline const float* scales_of(const AttentionCall& call, const CacheRows& rows, int padded) {
  float* scales = call.scores + std::size_t(call.heads) * padded;
  for (int p = 0; p < call.positions;) {
    const int at = call.first + p, left_in_block = kCacheBlock - at % kCacheBlock;
    const int count = call.positions - p < left_in_block ? call.positions - p : left_in_block;
    widen_scales(rows.scales + cache_row(call.table, at) * rows.scale_stride, rows.scale_stride, count, scales + p);
    p += count;
  }
  for (int p = call.positions; p < padded; ++p) scales[p] = 0;
  return scales;
}

// Scores or shares of all heads times the scales of their rows.
inline void multiply_rows(const AttentionCall& call, const CacheRows& rows, int padded) {
  const float* scales = scales_of(call, rows, padded);
  for (int h = 0; h < call.heads; ++h)
    for (int i = 0; i < padded; i += kLanes) {
      float* to = call.scores + std::size_t(h) * padded + i;
      store(load<Floats>(to) * load<Floats>(scales + i), to);
    }
}

// Not yet times `scale`.
inline void attention_scores(const AttentionCall& call, int padded) {
  const auto& [first, second] = call.parts;
  if (first.keys.codes) {
    scores_of_part<false>(call, first, first.keys.codes, padded);
    multiply_rows(call, first.keys, padded);
  } else {
    scores_of_part<false>(call, first, first.keys.values, padded);
  }
  if (second.width) scores_of_part<true>(call, second, second.keys.values, padded);
}

typedef float F8 __attribute__((vector_size(32)));
typedef float F4 __attribute__((vector_size(16)));

// The sum of 16 lanes in a tree: `total` of elementwise.h adds them one after the other.
inline float tree_sum(F16 v) {
  F8 a, b;
  std::memcpy(&a, &v, 32);
  std::memcpy(&b, reinterpret_cast<const char*>(&v) + 32, 32);
  a += b;
  F4 c, d;
  std::memcpy(&c, &a, 16);
  std::memcpy(&d, reinterpret_cast<const char*>(&a) + 16, 16);
  c += d;
  return (c[0] + c[2]) + (c[1] + c[3]);
}

// Scores of one head become exp(score - largest), and 0 beyond the end.
inline void exponentials(const AttentionCall& call, int head, int padded) {
  constexpr float kLowest = -3.4028235e38f;
  float* scores = call.scores + std::size_t(head) * padded;
  for (int i = call.positions; i < padded; ++i) scores[i] = 0;
  F16 top = splat(kLowest), zero = {};
  for (int i = 0; i < padded; i += 16) {
    F16 v = load_f32(scores + i) * call.scale;
    store_f32(scores + i, v);
    zero += v * 0.0f;  // NaN where a score is not finite: the clamp in exp would hide it
    for (int j = call.positions - i; j < 16; ++j) v[j] = kLowest;
    top = larger(top, v);
  }
  float largest = kLowest;
  for (int i = 0; i < 16; ++i) largest = top[i] > largest ? top[i] : largest;
  F16 sum = {};
  for (int i = 0; i < padded; i += 16) {
    F16 v = exponential(load_f32(scores + i) - largest);
    for (int j = call.positions - i; j < 16; ++j) v[j] = 0;
    store_f32(scores + i, v);
    sum += v;
  }
  call.largest[head] = largest;
  call.sums[head] = tree_sum(sum) + tree_sum(zero);
}

// H heads times C vectors of the values, from a column on; `left`: of it, if it is less than a vector.
template <int H, int C, class Element>
[[gnu::always_inline]] inline void mix(const AttentionCall& call, const Element* values, int head, int column,
                                       int padded, int left = kLanes) {
  Floats sums[H][C] = {};
  const float* shares = call.scores + std::size_t(head) * padded;
  const std::size_t stride = call.values.stride;
  for (int p = 0; p < call.positions;) {
    const int at = call.first + p, left_in_block = kCacheBlock - at % kCacheBlock;
    const int end = call.positions - p < left_in_block ? call.positions : p + left_in_block;
    const Element* row = values + cache_row(call.table, at) * stride + column;
    for (; p < end; ++p, row += stride) {
      Floats v[C];
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) v[c] = left < kLanes ? widened_some(row, left) : widened(row + c * kLanes);
#pragma GCC unroll 8
      for (int h = 0; h < H; ++h) {
        const Floats share = (Floats)broadcast(shares + std::size_t(h) * padded + p);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) sums[h][c] = multiply_add(share, v[c], sums[h][c]);
      }
    }
  }
  for (int h = 0; h < H; ++h)
    for (int c = 0; c < C; ++c)
      std::memcpy(call.mixed + std::size_t(head + h) * call.value_width + column + c * kLanes, &sums[h][c],
                  std::size_t(left) * sizeof(float));
}

template <class Element>
void mix_all(const AttentionCall& call, const Element* values, int padded) {
  by_heads(call.heads, 0, [&](auto heads, int head) {
    constexpr int H = heads, C = kLanes / H < 8 ? kLanes / H : 8;
    int column = 0;
    for (; column + C * kLanes <= call.value_width; column += C * kLanes)
      mix<H, C>(call, values, head, column, padded);
    for (; column + kLanes <= call.value_width; column += kLanes) mix<H, 1>(call, values, head, column, padded);
    if (column < call.value_width) mix<H, 1>(call, values, head, column, padded, call.value_width - column);
  });
}

void attend(const AttentionCall& call) {
  const int padded = (call.positions + 15) / 16 * 16;
  attention_scores(call, padded);
  for (int h = 0; h < call.heads; ++h) exponentials(call, h, padded);
  if (!call.values.codes) return mix_all(call, call.values.values, padded);
  multiply_rows(call, call.values, padded);
  mix_all(call, call.values.codes, padded);
}

}  // namespace
}  // namespace moesaic
