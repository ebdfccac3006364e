// The functions of step_kernels.h, in the compiler's vector extensions, but for attention. Internal linkage, as in
// elementwise.h: included by every instruction set's source file.
#pragma once

#include "products/step_attention.h"
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
