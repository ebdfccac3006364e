// The functions of step_kernels.h, in the compiler's vector extensions. Internal linkage, as in
// elementwise.h: included by every instruction set's source file.
#pragma once

#include "products/elementwise.h"
#include "products/step_kernels.h"

namespace moesaic {
namespace {

inline F16 load_some(const std::uint16_t* from, int left) {
  if (left >= 16) return load_bf16(from);
  H16 some = {};
  std::memcpy(&some, from, std::size_t(left) * 2);
  return load_bf16(&some);
}
inline F16 load_some(const float* from, int left) {
  if (left >= 16) return load_f32(from);
  F16 some = {};
  std::memcpy(&some, from, std::size_t(left) * sizeof(float));
  return some;
}
inline void store_some(F16 v, int left, std::uint16_t* to) { store_values(v, FloatType::bf16, 0, left, to); }
inline F16 round_bf16(F16 v) { return rounded(v, FloatType::bf16); }

void round_strips(const float* c, std::size_t c_stride, const std::uint16_t* bias, int count,
                  std::uint16_t* out) {
  for (int i = 0; i < count; i += 16, c += c_stride) {
    F16 v = load_f32(c);
    if (bias) v += load_some(bias + i, count - i);
    store_some(v, count - i, out + i);
  }
}

void add_residual(std::uint16_t* to, const std::uint16_t* a, const std::uint16_t* b, float gate, int count) {
  for (int i = 0; i < count; i += 16) {
    const int left = count - i;
    F16 sum = load_some(a + i, left);
    if (b) sum = round_bf16(sum + round_bf16(load_some(b + i, left) * gate));
    store_some(load_some(to + i, left) + sum, left, to + i);
  }
}

void clip(std::uint16_t* x, int count, float limit) {
  for (int i = 0; i < count; i += 16) {
    const F16 v = load_some(x + i, count - i);
    // A comparison with NaN is false: it stays. Plus 0, or NaN where clipping would hide an infinity.
    const F16 low = select(is_less(v, splat(-limit)), splat(-limit), v);
    store_some(select(is_less(splat(limit), low), splat(limit), low) + v * 0.0f, count - i, x + i);
  }
}

// Half a head apart: every operation is rounded, cosine and sine too, as the stock models do in bf16.
void rotate_halves(std::uint16_t* x, const Turn& turn) {
  const int half = turn.dim / 2;
  for (int i = 0; i < half; i += 16) {
    const int left = half - i;
    const F16 cos = round_bf16(load_some(turn.cos + i, left));
    const F16 sin = round_bf16(load_some(turn.sin + i, left));
    const F16 first = load_some(x + i, left), second = load_some(x + half + i, left);
    store_some(round_bf16(first * cos) - round_bf16(second * sin), left, x + i);
    store_some(round_bf16(second * cos) + round_bf16(first * sin), left, x + half + i);
  }
}

inline float one_bf16(std::uint16_t half) {
  const std::uint32_t bits = std::uint32_t(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// Neighbours: in fp32, rounded once, as the stock model does.
void rotate_neighbours(std::uint16_t* x, const Turn& turn) {
  for (int i = 0; i < turn.dim / 2; ++i) {
    const float even = one_bf16(x[2 * i]), odd = one_bf16(x[2 * i + 1]);
    const float a = even * turn.cos[i] - odd * turn.sin[i], b = odd * turn.cos[i] + even * turn.sin[i];
    x[2 * i] = to_bf16(splat(a))[0];
    x[2 * i + 1] = to_bf16(splat(b))[0];
  }
}

void rotate(std::uint16_t* x, const Turn& turn) {
  (turn.interleaved ? rotate_neighbours : rotate_halves)(x, turn);
}

void widen_row(const std::uint16_t* from, int count, float* to) {
  for (int i = 0; i < count; i += 16)
    store_values(load_some(from + i, count - i), FloatType::f32, 0, count - i, to + i);
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

constexpr int kBlock = 4;  // heads and positions, or heads and vectors, that share a load

// Adds the products of up to four heads with up to four rows of the cache to sums[head][position].
inline void add_dots(const AttentionCall::Part& part, int head, int heads, std::size_t row, int positions,
                     F16 (&sums)[kBlock][kBlock]) {
  const float* query[kBlock];
  const std::uint16_t* key[kBlock];
  for (int i = 0; i < kBlock; ++i) {  // beyond the end: the first once more, whose sums are not used
    query[i] = part.queries + std::size_t(head + (i < heads ? i : 0)) * part.width;
    key[i] = part.keys + (row + (i < positions ? i : 0)) * part.stride;
  }
  for (int d = 0; d < part.width; d += 16) {
    F16 k[kBlock];
#pragma GCC unroll 4
    for (int p = 0; p < kBlock; ++p) k[p] = load_some(key[p] + d, part.width - d);
#pragma GCC unroll 4
    for (int h = 0; h < kBlock; ++h) {
      const F16 q = load_some(query[h] + d, part.width - d);
#pragma GCC unroll 4
      for (int p = 0; p < kBlock; ++p) sums[h][p] += q * k[p];
    }
  }
}

void attention_scores(const AttentionCall& call, int padded) {
  for (int p = 0; p < call.positions; p += kBlock) {
    const int positions = call.positions - p < kBlock ? call.positions - p : kBlock;
    const std::size_t row = cache_row(call.table, call.first + p);  // the others follow in the same block
    for (int h = 0; h < call.heads; h += kBlock) {
      const int heads = call.heads - h < kBlock ? call.heads - h : kBlock;
      F16 sums[kBlock][kBlock] = {};
      for (const AttentionCall::Part& part : call.parts)
        if (part.width) add_dots(part, h, heads, row, positions, sums);
      for (int i = 0; i < heads; ++i)
        for (int j = 0; j < positions; ++j)
          call.scores[std::size_t(h + i) * padded + p + j] = tree_sum(sums[i][j]) * call.scale;
    }
  }
}

// Scores of one head become exp(score - largest), and 0 beyond the end.
void exponentials(const AttentionCall& call, int head, int padded) {
  float* scores = call.scores + std::size_t(head) * padded;
  float largest = -3.4028235e38f, poison = 0;
  for (int i = 0; i < call.positions; ++i) {
    largest = scores[i] > largest ? scores[i] : largest;
    poison += scores[i] * 0.0f;  // the clamp in exp would hide a NaN
  }
  F16 sum = {};
  for (int i = 0; i < padded; i += 16) {
    F16 v = exponential(load_f32(scores + i) - largest);
    for (int j = call.positions - i; j < 16; ++j) v[j] = 0;
    store_f32(scores + i, v);
    sum += v;
  }
  call.largest[head] = largest;
  call.sums[head] = tree_sum(sum) + poison;
}

// Up to four heads times up to four vectors of the values.
inline void mix_block(const AttentionCall& call, int head, int heads, int column, int padded) {
  F16 sums[kBlock][kBlock] = {};
  const float* share[kBlock];
  for (int h = 0; h < kBlock; ++h)
    share[h] = call.scores + std::size_t(head + (h < heads ? h : 0)) * padded;
  const int left = call.value_width - column;
  for (int p = 0; p < call.positions;) {
    const int at = call.first + p, left_in_block = kCacheBlock - at % kCacheBlock;
    const int end = call.positions - p < left_in_block ? call.positions : p + left_in_block;
    const std::uint16_t* row = call.values + cache_row(call.table, at) * call.value_stride + column;
    for (; p < end; ++p, row += call.value_stride) {
      F16 v[kBlock];
#pragma GCC unroll 4
      for (int d = 0; d < kBlock; ++d)
        v[d] = d * 16 < left ? load_some(row + d * 16, left - d * 16) : F16{};
#pragma GCC unroll 4
      for (int h = 0; h < kBlock; ++h)
#pragma GCC unroll 4
        for (int d = 0; d < kBlock; ++d) sums[h][d] += v[d] * share[h][p];
    }
  }
  for (int h = 0; h < heads; ++h)
    for (int d = 0; d < kBlock && d * 16 < left; ++d)
      store_values(sums[h][d], FloatType::f32, 0, left - d * 16,
                   call.mixed + std::size_t(head + h) * call.value_width + column + d * 16);
}

void attend(const AttentionCall& call) {
  const int padded = (call.positions + 15) / 16 * 16;
  attention_scores(call, padded);
  for (int h = 0; h < call.heads; ++h) exponentials(call, h, padded);
  for (int h = 0; h < call.heads; h += kBlock)
    for (int column = 0; column < call.value_width; column += 16 * kBlock)
      mix_block(call, h, call.heads - h < kBlock ? call.heads - h : kBlock, column, padded);
}

void merge_parts(const float* largest, const float* sums, const float* mixed, int parts,
                 std::size_t scalar_stride, std::size_t stride, int width, std::uint16_t* out) {
  float top = largest[0], sum = 0, share[kMaxAttentionParts];
  for (int i = 1; i < parts; ++i)
    top = largest[i * scalar_stride] > top ? largest[i * scalar_stride] : top;
  for (int i = 0; i < parts; ++i) {
    share[i] = std::exp(largest[i * scalar_stride] - top);
    sum += sums[i * scalar_stride] * share[i];
  }
  for (int column = 0; column < width; column += 16) {
    F16 v = {};
    for (int i = 0; i < parts; ++i)
      v += load_some(mixed + i * stride + column, width - column) * share[i];
    store_some(v / sum, width - column, out + column);
  }
}

void combine_rows(const float* x, const std::uint16_t* matrix, int rows, int columns, float* out) {
  constexpr int kVectors = 4;
  for (int column = 0; column < columns; column += 16 * kVectors) {
    F16 sums[kVectors] = {};
    for (int row = 0; row < rows; ++row) {
      const std::uint16_t* from = matrix + std::size_t(row) * columns + column;
      for (int i = 0; i < kVectors && column + i * 16 < columns; ++i)
        sums[i] += load_some(from + i * 16, columns - column - i * 16) * x[row];
    }
    for (int i = 0; i < kVectors && column + i * 16 < columns; ++i)
      store_values(sums[i], FloatType::f32, 0, columns - column - i * 16, out + column + i * 16);
  }
}

const StepKernels step_kernels = {
    round_strips, add_residual, clip, rotate, widen_row, attend, merge_parts, combine_rows,
};

}  // namespace
}  // namespace moesaic
