// Elementwise functions between the products, in the compiler's vector extensions. Included by every
// instruction set's source file, each compiled with its own flags: everything here has internal linkage,
// or the linker would keep one copy for all instruction sets.
#pragma once

#include <cmath>
#include <cstring>

#include "products/kernels.h"
#include "products/lanes.h"

namespace moesaic {
namespace {

typedef float F16 __attribute__((vector_size(64)));
typedef std::int32_t I16 __attribute__((vector_size(64)));
typedef std::uint32_t U16 __attribute__((vector_size(64)));
typedef std::uint16_t H16 __attribute__((vector_size(32)));

inline F16 load_f32(const void* from) {
  F16 v;
  std::memcpy(&v, from, 64);
  return v;
}
inline void store_f32(void* to, F16 v) { std::memcpy(to, &v, 64); }
inline F16 splat(float x) { return F16{} + x; }

inline F16 bits_to_f32(U16 bits) {
  F16 v;
  std::memcpy(&v, &bits, 64);
  return v;
}
inline U16 f32_to_bits(F16 v) {
  U16 b;
  std::memcpy(&b, &v, 64);
  return b;
}

inline U16 widen(const void* from) {
  H16 h;
  std::memcpy(&h, from, 32);
  return __builtin_convertvector(h, U16);
}
inline F16 load_bf16(const void* from) { return bits_to_f32(widen(from) << 16); }

// A comparison in vectors of the instruction set's width: compilers compare wider ones element by element.
template <class Compare>
[[gnu::always_inline]] inline I16 compared(F16 a, F16 b, Compare compare) {
  I16 mask;
#pragma GCC unroll 4
  for (int i = 0; i < 64; i += kVectorBytes)
    store(compare(load<Floats>(reinterpret_cast<const char*>(&a) + i),
                  load<Floats>(reinterpret_cast<const char*>(&b) + i)),
          reinterpret_cast<char*>(&mask) + i);
  return mask;
}
inline I16 is_less(F16 a, F16 b) {
  return compared(a, b, [](Floats x, Floats y) { return (Ints)(x < y); });
}
inline I16 is_number(F16 v) {
  return compared(v, v, [](Floats x, Floats y) { return (Ints)(x == y); });
}

// Round to nearest, ties to even; NaN stays NaN. The upper halves are the result.
inline U16 rounded_bits(F16 v) {
  const U16 bits = f32_to_bits(v);
  const U16 rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const I16 ordered = is_number(v);
  return (rounded & (U16)ordered) | ((bits | 0x400000u) & ~(U16)ordered);
}
inline H16 to_bf16(F16 v) { return __builtin_convertvector(rounded_bits(v) >> 16, H16); }

inline F16 select(I16 mask, F16 yes, F16 no) {
  const U16 m = (U16)mask;
  return bits_to_f32((f32_to_bits(yes) & m) | (f32_to_bits(no) & ~m));
}

inline F16 smaller(F16 a, F16 b) { return select(is_less(a, b), a, b); }
inline F16 larger(F16 a, F16 b) { return select(is_less(b, a), a, b); }

// exp, relative error about 1e-7: 2^n times a polynomial on [-ln2/2, ln2/2].
inline F16 exponential(F16 x) {
  x = smaller(larger(x, splat(-87.0f)), splat(88.0f));
  const F16 shifter = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const F16 t = x * 1.44269504f + shifter;
  const F16 n = t - shifter;
  F16 r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  F16 p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const U16 power = (f32_to_bits(t) - 0x4b400000u + 127u) << 23;
  return p * bits_to_f32(power);
}

inline F16 silu(F16 x) { return x / (1.0f + exponential(-x)); }

inline F16 gelu_tanh(F16 x) {
  // 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u))
  const F16 u = 0.7978845608f * (x + 0.044715f * x * x * x);
  return x / (1.0f + exponential(-2.0f * u));
}

inline F16 gelu(F16 x) {
  F16 y;
  for (int i = 0; i < 16; ++i) y[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.70710678f));
  return y;
}

inline F16 activated(Activation kind, F16 x) {
  switch (kind) {
    case Activation::gelu: return gelu(x);
    case Activation::gelu_tanh: return gelu_tanh(x);
    default: {
      const F16 y = silu(x);
      return select(is_number(x), y, x);  // the clamp in exp would hide a NaN
    }
  }
}

void activate(Activation kind, const float* gate, const float* up, int tokens, float* rows,
              std::size_t row_stride) {
  for (int t = 0; t < tokens; ++t)
    store_f32(rows + t * row_stride, activated(kind, load_f32(gate + t * 16)) * load_f32(up + t * 16));
}

[[maybe_unused]] void activate_bf16(Activation kind, const float* gate, const float* up, int tokens,
                                    std::uint8_t* to, std::size_t stride) {
  for (int t = 0; t < tokens; ++t) {
    const H16 h = to_bf16(activated(kind, load_f32(gate + t * 16)) * load_f32(up + t * 16));
    std::memcpy(to + t * stride, &h, 32);
  }
}

void scatter_add(const float* c, int tokens, const std::int32_t* rows, const float* weights, float* out,
                 std::size_t row_stride) {
  for (int t = 0; t < tokens; ++t) {
    float* to = out + rows[t] * row_stride;
    store_f32(to, load_f32(to) + load_f32(c + t * 16) * weights[t]);
  }
}

void narrow(const float* from, int count, FloatType type, std::uint16_t* to) {
  int i = 0;
  for (; type == FloatType::bf16 && i + 16 <= count; i += 16) {
    const H16 h = to_bf16(load_f32(from + i));
    std::memcpy(to + i, &h, 32);
  }
  for (; i < count; ++i) {
    if (type == FloatType::bf16) {
      to[i] = to_bf16(splat(from[i]))[0];
    } else {
      const _Float16 h = _Float16(from[i]);
      std::memcpy(to + i, &h, 2);
    }
  }
}

inline float half_to_float(std::uint16_t h) {
  _Float16 v;
  std::memcpy(&v, &h, 2);
  return float(v);
}

// 16 values starting at column `from`, zero beyond `inputs`.
inline F16 load_values(const void* row, FloatType type, int from, int inputs) {
  const int left = inputs - from;
  if (left >= 16 && type == FloatType::f32) return load_f32((const float*)row + from);
  if (left >= 16 && type == FloatType::bf16) return load_bf16((const std::uint16_t*)row + from);
  F16 v = {};
  for (int i = 0; i < 16 && i < left; ++i) {
    if (type == FloatType::f32) {
      v[i] = ((const float*)row)[from + i];
    } else if (type == FloatType::f16) {
      v[i] = half_to_float(((const std::uint16_t*)row)[from + i]);
    } else {
      const std::uint32_t bits = std::uint32_t(((const std::uint16_t*)row)[from + i]) << 16;
      std::memcpy(&v[i], &bits, 4);
    }
  }
  return v;
}

// Address of the row's 16 values starting at column `from`; blocks of 16 are `block_stride` values apart.
inline const void* block_at(const void* row, FloatType type, int from, std::size_t block_stride) {
  const std::size_t size = type == FloatType::f32 ? sizeof(float) : sizeof(std::uint16_t);
  return static_cast<const char*>(row) + from / 16 * block_stride * size;
}

void fill_bf16(const FillCall& call) {
  const auto [rows, type, block_stride, count, inputs, tiles, groups, tile, scales, code_sums, tile_rows,
              group_stride] = call;
  for (int t = 0; t < count; ++t) {
    for (int k = 0; k < tiles; ++k) {
      std::uint8_t* to = tile + (std::size_t(k) * tile_rows + t) * kRowBytes;
      const int from = k * 32;
      if (type == FloatType::bf16 && block_stride == 16 && from + 32 <= inputs) {
        std::memcpy(to, (const std::uint16_t*)rows[t] + from, 64);
        continue;
      }
      for (int half = 0; half < 2; ++half) {
        const int column = from + half * 16;
        const H16 h =
            to_bf16(load_values(block_at(rows[t], type, column, block_stride), type, 0, inputs - column));
        std::memcpy(to + half * 32, &h, 32);
      }
    }
  }
}

// Of one group of a token's values: the largest magnitude, and whether all are finite.
struct GroupRange {
  float largest = 0, poison = 0;  // poison: 0, or NaN if a value is not finite

  // Codes of non-finite values are arbitrary integers, whose sum could overflow later.
  std::int32_t sum_of_codes(std::uint32_t sum) const { return poison == 0.0f ? std::int32_t(sum) : 0; }
};

template <int Vectors>
inline GroupRange load_group(const void* row, FloatType type, std::size_t block_stride, int from, int inputs,
                             F16* v) {
  F16 top = {}, zero = {};
  for (int i = 0; i < Vectors; ++i) {
    const int column = from + i * 16;
    v[i] = load_values(block_at(row, type, column, block_stride), type, 0, inputs - column);
    top = larger(top, larger(v[i], -v[i]));
    zero += v[i] * 0.0f;
  }
  GroupRange range;
  for (int i = 0; i < 16; ++i) {
    range.largest = top[i] > range.largest ? top[i] : range.largest;
    range.poison += zero[i];
  }
  return range;
}

inline I16 rounded_codes(F16 v, float inverse) {
  const F16 shifter = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  return (I16)(f32_to_bits(v * inverse + shifter) - 0x4b400000u);
}

inline float inverse_of(float largest, float top_code) {
  return largest > 1e-30f && largest <= 3.4028235e38f ? top_code / largest : 0.0f;
}

typedef std::int8_t B16 __attribute__((vector_size(16)));

// Codes in [-127, 127].
[[maybe_unused]] void fill_int8(const FillCall& call) {
  const auto [rows, type, block_stride, count, inputs, tiles, groups, tile, scales, code_sums, tile_rows,
              group_stride] = call;
  constexpr int kGroup = format_of(Dtype::int8).group, kVectors = kGroup / 16;
  for (int t = 0; t < count; ++t) {
    for (int g = 0; g < groups; ++g) {
      F16 v[kVectors];
      const GroupRange range = load_group<kVectors>(rows[t], type, block_stride, g * kGroup, inputs, v);
      const float inverse = inverse_of(range.largest, 127.0f);
      scales[t * group_stride + g] = range.largest / 127.0f + range.poison;
      U16 sum = {};
      for (int i = 0; i < kVectors; ++i) {
        const int k = g * (kGroup / 64) + i / 4;
        if (k >= tiles) break;
        const I16 codes = rounded_codes(v[i], inverse);
        const B16 bytes = __builtin_convertvector(codes, B16);
        std::memcpy(tile + (std::size_t(k) * tile_rows + t) * kRowBytes + i % 4 * 16, &bytes, 16);
        sum += (U16)codes;
      }
      std::uint32_t total = 0;
      for (int i = 0; i < 16; ++i) total += sum[i];
      code_sums[t * group_stride + g] = range.sum_of_codes(total);
    }
  }
}

// For int4 weights. Codes in [-32512, 32512] (127 * 256), as 256 * high + low: a token's 64 bytes of a tile
// are 32 high bytes, then 32 low bytes, both in the order of the int4 weights within a line. With `Bytes`,
// codes in [-127, 127], and the second half is not used.
template <bool Bytes>
constexpr float kTopCode = Bytes ? 127.0f : 32512.0f;

template <bool Bytes>
[[maybe_unused]] void fill_int4(const FillCall& call) {
  const auto [rows, type, block_stride, count, inputs, tiles, groups, tile, scales, code_sums, tile_rows,
              group_stride] = call;
  for (int t = 0; t < count; ++t) {
    for (int k = 0; k < tiles; ++k) {
      F16 v[2];
      const GroupRange range = load_group<2>(rows[t], type, block_stride, k * 32, inputs, v);
      const float inverse = inverse_of(range.largest, kTopCode<Bytes>);
      scales[t * group_stride + k] = range.largest / kTopCode<Bytes> + range.poison;
      std::int8_t high[32], low[32];
      std::uint32_t sum = 0;
      for (int i = 0; i < 2; ++i) {
        const I16 codes = rounded_codes(v[i], inverse);
        const I16 highs = Bytes ? codes : (codes + 128) >> 8;
        const B16 h = __builtin_convertvector(highs, B16);
        const B16 l = __builtin_convertvector(codes - (highs << 8), B16);
        std::memcpy(high + i * 16, &h, 16);
        std::memcpy(low + i * 16, &l, 16);
        for (int j = 0; j < 16; ++j) sum += std::uint32_t(codes[j]);
      }
      code_sums[t * group_stride + k] = range.sum_of_codes(sum);
      std::uint8_t* to = tile + (std::size_t(k) * tile_rows + t) * kRowBytes;
      // Of a line's eight inputs, the low nibbles of a word's bytes hold 0 4 1 5, the high ones 2 6 3 7.
      static constexpr int kOrder[8] = {0, 4, 1, 5, 2, 6, 3, 7};
      for (int r = 0; r < 4; ++r)
        for (int i = 0; i < 8; ++i) {
          to[r * 8 + i] = std::uint8_t(high[r * 8 + kOrder[i]]);
          if (!Bytes) to[32 + r * 8 + i] = std::uint8_t(low[r * 8 + kOrder[i]]);
        }
    }
  }
}

inline float total(F16 v) {
  float sum = 0;
  for (int i = 0; i < 16; ++i) sum += v[i];
  return sum;
}

inline F16 rounded(F16 v, FloatType type) {
  if (type == FloatType::f32) return v;
  if (type == FloatType::bf16) return bits_to_f32(rounded_bits(v) & 0xffff0000u);
  for (int i = 0; i < 16; ++i) v[i] = float(_Float16(v[i]));
  return v;
}

inline void store_values(F16 v, FloatType type, int from, int count, void* to) {
  const int there = count - from < 16 ? count - from : 16;
  if (there == 16 && type == FloatType::f32) return store_f32(static_cast<float*>(to) + from, v);
  if (there == 16 && type == FloatType::bf16) {  // of a known length: no call
    const H16 h = to_bf16(v);
    std::memcpy(static_cast<std::uint16_t*>(to) + from, &h, sizeof h);
    return;
  }
  if (type == FloatType::f32) {
    std::memcpy(static_cast<float*>(to) + from, &v, there * sizeof(float));
  } else if (type == FloatType::bf16) {
    const H16 h = to_bf16(v);
    std::memcpy(static_cast<std::uint16_t*>(to) + from, &h, there * 2);
  } else {
    for (int i = 0; i < there; ++i) {
      const _Float16 h = _Float16(v[i]);
      std::memcpy(static_cast<std::uint16_t*>(to) + from + i, &h, 2);
    }
  }
}

template <FloatType type>
inline void rms_norm_of(const void* x, const void* weight, int count, float eps, void* out) {
  F16 squares[4] = {};
  for (int i = 0; i < count; i += 16) {
    const F16 v = load_values(x, type, i, count);
    squares[i / 16 % 4] += v * v;
  }
  const float mean = total((squares[0] + squares[1]) + (squares[2] + squares[3])) / float(count);
  const float scale = 1.0f / std::sqrt(mean + eps);
  for (int i = 0; i < count; i += 16) {
    const F16 v = rounded(load_values(x, type, i, count) * scale, type);
    store_values(load_values(weight, type, i, count) * v, type, i, count, out);
  }
}

void rms_norm(const void* x, const void* weight, FloatType type, int count, float eps, void* out) {
  switch (type) {
    case FloatType::bf16: return rms_norm_of<FloatType::bf16>(x, weight, count, eps, out);
    case FloatType::f16: return rms_norm_of<FloatType::f16>(x, weight, count, eps, out);
    default: return rms_norm_of<FloatType::f32>(x, weight, count, eps, out);
  }
}

// Four rows at a time, so that a vector of x is loaded once for four dot products.
void router_scores(const void* x, const void* matrix, FloatType type, int rows, int count, float* scores) {
  const std::size_t row_bytes = std::size_t(count) * (type == FloatType::f32 ? 4 : 2);
  const char* from = static_cast<const char*>(matrix);
  for (int first = 0; first < rows; first += 4) {
    const int there = rows - first < 4 ? rows - first : 4;
    F16 sums[4] = {};
    for (int i = 0; i < count; i += 16) {
      const F16 v = load_values(x, type, i, count);
      for (int r = 0; r < 4; ++r) {
        const char* row = from + (first + (r < there ? r : 0)) * row_bytes;
        __builtin_prefetch(row + 4 * row_bytes + i * (row_bytes / count));
        sums[r] += v * load_values(row, type, i, count);
      }
    }
    for (int r = 0; r < there; ++r) scores[first + r] = total(sums[r]);
  }
}

}  // namespace
}  // namespace moesaic
