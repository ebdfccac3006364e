// Functions of elementwise.h in AVX-512 intrinsics: with hundreds of tokens they take a tenth of a layer's
// time. Internal linkage, as in elementwise.h.
#pragma once

#include <immintrin.h>

#include "products/elementwise.h"

namespace moesaic {
namespace {

inline __m512 load_masked(const void* from, FloatType type, __mmask16 there) {
  if (type == FloatType::f32) return _mm512_maskz_loadu_ps(there, from);
  const __m256i half = _mm256_maskz_loadu_epi16(there, from);
  if (type == FloatType::f16) return _mm512_cvtph_ps(half);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

inline __mmask16 first_lanes(int count) {
  return count >= 16 ? __mmask16(0xffff) : count <= 0 ? __mmask16(0) : __mmask16((1 << count) - 1);
}

inline __m512 exp_fast(__m512 x) {
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.9875691500e-4f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
  p = _mm512_fmadd_ps(_mm512_mul_ps(p, r), r, _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
  return _mm512_scalef_ps(p, n);
}

inline __m512 silu_fast(__m512 x) {
  // Below -87 the result is 0 anyway; max() returns its second operand if one is NaN.
  const __m512 negative = _mm512_sub_ps(_mm512_setzero_ps(), _mm512_max_ps(_mm512_set1_ps(-87.0f), x));
  const __m512 below = _mm512_add_ps(_mm512_set1_ps(1.0f), exp_fast(negative));
  // 1 / below, to the last bit or two: an estimate and one Newton step.
  const __m512 near = _mm512_rcp14_ps(below);
  const __m512 inverse = _mm512_mul_ps(near, _mm512_fnmadd_ps(below, near, _mm512_set1_ps(2.0f)));
  return _mm512_mul_ps(x, inverse);
}

// Relative error about 1e-4: enough for a result that is rounded to bf16.
inline __m512 silu_coarse(__m512 x) {
  const __m512 negative = _mm512_sub_ps(_mm512_setzero_ps(), _mm512_max_ps(_mm512_set1_ps(-87.0f), x));
  const __m512 t = _mm512_mul_ps(negative, _mm512_set1_ps(1.44269504f));
  const __m512 n = _mm512_roundscale_ps(t, 0), r = _mm512_sub_ps(t, n);  // 2^n times 2^r
  __m512 p = _mm512_set1_ps(9.61812911e-3f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.55041087e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.40226507e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.93147181e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  const __m512 below = _mm512_add_ps(_mm512_set1_ps(1.0f), _mm512_scalef_ps(p, n));
  return _mm512_mul_ps(x, _mm512_rcp14_ps(below));
}

inline __m256i narrow_bf16(__m512 v) {
#if defined(__AVX512BF16__)
  return (__m256i)_mm512_cvtneps_pbh(v);
#else
  return (__m256i)to_bf16((F16)v);
#endif
}

inline __m512i narrow_bf16(__m512 low, __m512 high) {
#if defined(__AVX512BF16__)
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
#else
  return _mm512_inserti64x4(_mm512_castsi256_si512(narrow_bf16(low)), narrow_bf16(high), 1);
#endif
}

void activate_fast(Activation kind, const float* gate, const float* up, int tokens, float* rows,
                   std::size_t row_stride) {
  if (kind != Activation::silu) return activate(kind, gate, up, tokens, rows, row_stride);
  for (int t = 0; t < tokens; ++t)
    _mm512_storeu_ps(rows + t * row_stride,
                     _mm512_mul_ps(silu_fast(_mm512_loadu_ps(gate + t * 16)), _mm512_loadu_ps(up + t * 16)));
}

void activate_bf16_fast(Activation kind, const float* gate, const float* up, int tokens, std::uint8_t* to,
                        std::size_t stride) {
  if (kind != Activation::silu) return activate_bf16(kind, gate, up, tokens, to, stride);
  for (int t = 0; t < tokens; ++t) {
    const __m512 inner =
        _mm512_mul_ps(silu_coarse(_mm512_loadu_ps(gate + t * 16)), _mm512_loadu_ps(up + t * 16));
    _mm256_storeu_si256((__m256i*)(to + t * stride), narrow_bf16(inner));
  }
}

void fill_int8_fast(const FillCall& call) {
  const auto [rows, type, block_stride, count, inputs, tiles, groups, tile, scales, code_sums, tile_rows,
              group_stride] = call;
  constexpr int kGroup = format_of(Dtype::int8).group, kVectors = kGroup / 16;
  for (int t = 0; t < count; ++t) {
    for (int g = 0; g < groups; ++g) {
      __m512 v[kVectors];
      __m512 top = _mm512_setzero_ps(), zero = _mm512_setzero_ps();
      for (int i = 0; i < kVectors; ++i) {
        const int column = g * kGroup + i * 16;
        const __mmask16 there = first_lanes(inputs - column);
        v[i] = there ? load_masked(block_at(rows[t], type, column, block_stride), type, there)
                     : _mm512_setzero_ps();
        top = _mm512_max_ps(top, _mm512_abs_ps(v[i]));
        zero = _mm512_fmadd_ps(v[i], _mm512_setzero_ps(), zero);
      }
      const float largest = _mm512_reduce_max_ps(top), poison = _mm512_reduce_add_ps(zero);
      const __m512 inverse = _mm512_set1_ps(inverse_of(largest, 127.0f));
      scales[t * group_stride + g] = largest / 127.0f + poison;
      __m512i sum = _mm512_setzero_si512();
      for (int i = 0; i < kVectors; ++i) {
        const int k = g * (kGroup / 64) + i / 4;
        if (k >= tiles) break;
        const __m512i codes = _mm512_cvtps_epi32(_mm512_mul_ps(v[i], inverse));
        _mm_storeu_si128((__m128i*)(tile + (std::size_t(k) * tile_rows + t) * kRowBytes + i % 4 * 16),
                         _mm512_cvtsepi32_epi8(codes));
        sum = _mm512_add_epi32(sum, codes);
      }
      code_sums[t * group_stride + g] = poison == 0.0f ? _mm512_reduce_add_epi32(sum) : 0;  // see GroupRange
    }
  }
}

// Lane j: what `join` makes of all lanes of v[j]. Four at once take half the shuffles, and do not wait for each other.
template <class Join>
inline __m128 joined(const __m512 (&v)[4], Join join) {
  const auto pairs = [](__m512 x) { return _mm512_castps_pd(x); };
  const __m512 first = join(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
  const __m512 second = join(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
  __m512 all = join(_mm512_castpd_ps(_mm512_unpacklo_pd(pairs(first), pairs(second))),
                    _mm512_castpd_ps(_mm512_unpackhi_pd(pairs(first), pairs(second))));
  all = join(all, _mm512_shuffle_f32x4(all, all, 0x4e));
  return _mm512_castps512_ps128(join(all, _mm512_shuffle_f32x4(all, all, 0xb1)));
}

// The codes of a group's two vectors to its row of a tile; returns their sums by lane. As `fill_int4` in elementwise.h,
// which explains the order of bytes.
template <bool Bytes>
inline __m512i store_int4(const __m512 (&v)[2], __m512 inverse, std::uint8_t* to) {
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15));
  __m128i high[2], low[2];
  __m512i sum = _mm512_setzero_si512();
  for (int i = 0; i < 2; ++i) {
    const __m512i codes = _mm512_cvtps_epi32(_mm512_mul_ps(v[i], inverse));
    const __m512i highs =
        Bytes ? codes : _mm512_srai_epi32(_mm512_add_epi32(codes, _mm512_set1_epi32(128)), 8);
    high[i] = _mm512_cvtepi32_epi8(highs);
    low[i] = _mm512_cvtepi32_epi8(codes);  // the low byte: 256 times the high one is gone
    sum = _mm512_add_epi32(sum, codes);
  }
  _mm256_storeu_si256((__m256i*)to, _mm256_shuffle_epi8(_mm256_set_m128i(high[1], high[0]), order));
  if (!Bytes)
    _mm256_storeu_si256((__m256i*)(to + 32),
                        _mm256_shuffle_epi8(_mm256_set_m128i(low[1], low[0]), order));
  return sum;
}

// Four whole groups of a token, from tile `k` on.
template <bool Bytes>
inline void fill_four_int4(const FillCall& call, int t, int k) {
  const __m512 zero = _mm512_setzero_ps();
  __m512 v[4][2], tops[4], sums[4];
  __mmask8 broken = 0;
  for (int g = 0; g < 4; ++g) {
    for (int i = 0; i < 2; ++i)
      v[g][i] = load_masked(block_at(call.rows[t], call.type, (k + g) * 32 + i * 16, call.block_stride),
                            call.type, __mmask16(0xffff));
    tops[g] = _mm512_max_ps(_mm512_abs_ps(v[g][0]), _mm512_abs_ps(v[g][1]));
    const __m512 poison = _mm512_fmadd_ps(v[g][0], zero, _mm512_mul_ps(v[g][1], zero));
    broken |= __mmask8((_mm512_cmp_ps_mask(poison, zero, _CMP_NEQ_UQ) != 0) << g);
  }
  alignas(16) float largest[4], inverse[4], scales[4];
  alignas(16) std::int32_t code_sums[4];
  _mm_store_ps(largest, joined(tops, [](__m512 x, __m512 y) { return _mm512_max_ps(x, y); }));
  for (int g = 0; g < 4; ++g) inverse[g] = inverse_of(largest[g], kTopCode<Bytes>);
  for (int g = 0; g < 4; ++g)
    sums[g] = _mm512_castsi512_ps(
        store_int4<Bytes>(v[g], _mm512_set1_ps(inverse[g]),
                          call.tile + (std::size_t(k + g) * call.tile_rows + t) * kRowBytes));
  const auto add = [](__m512 x, __m512 y) {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_castps_si512(y)));
  };
  _mm_store_si128((__m128i*)code_sums, _mm_castps_si128(joined(sums, add)));
  for (int g = 0; g < 4; ++g) {
    const bool whole = !(broken >> g & 1);
    scales[g] = whole ? largest[g] / kTopCode<Bytes> : __builtin_nanf("");
    if (!whole) code_sums[g] = 0;  // see GroupRange
  }
  const std::size_t at = t * std::size_t(call.group_stride) + k;
  std::memcpy(call.scales + at, scales, sizeof scales);
  std::memcpy(call.code_sums + at, code_sums, sizeof code_sums);
}

template <bool Bytes>
void fill_int4_fast(const FillCall& call) {
  const auto [rows, type, block_stride, count, inputs, tiles, groups, tile, scales, code_sums, tile_rows,
              group_stride] = call;
  for (int t = 0; t < count; ++t) {
    int k = 0;
    for (; k + 4 <= tiles && (k + 4) * 32 <= inputs; k += 4) fill_four_int4<Bytes>(call, t, k);
    for (; k < tiles; ++k) {
      __m512 v[2];
      for (int i = 0; i < 2; ++i) {
        const int column = k * 32 + i * 16;
        const __mmask16 there = first_lanes(inputs - column);
        v[i] = there ? load_masked(block_at(rows[t], type, column, block_stride), type, there)
                     : _mm512_setzero_ps();
      }
      const __m512 zero = _mm512_setzero_ps();
      const float largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(v[0]), _mm512_abs_ps(v[1])));
      const float poison = _mm512_reduce_add_ps(_mm512_fmadd_ps(v[0], zero, _mm512_mul_ps(v[1], zero)));
      const __m512 inverse = _mm512_set1_ps(inverse_of(largest, kTopCode<Bytes>));
      scales[t * group_stride + k] = largest / kTopCode<Bytes> + poison;
      const __m512i sum =
          store_int4<Bytes>(v, inverse, tile + (std::size_t(k) * tile_rows + t) * kRowBytes);
      code_sums[t * group_stride + k] = poison == 0.0f ? _mm512_reduce_add_epi32(sum) : 0;  // see GroupRange
    }
  }
}

// Tile by tile rather than token by token, so that writes are sequential.
void copy_bf16(const FillCall& call) {
  const auto [rows, type, block_stride, count, inputs, tiles, groups, tile, scales, code_sums, tile_rows,
              group_stride] = call;
  for (int k = 0; k < tiles; ++k) {
    const int left = inputs - k * 32;
    const __mmask32 there = left >= 32 ? ~__mmask32(0) : (__mmask32(1) << left) - 1;
    for (int t = 0; t < count; ++t) {
      const auto* row = static_cast<const std::uint16_t*>(rows[t]) + k * 32;
      _mm512_storeu_si512(tile + (std::size_t(k) * tile_rows + t) * kRowBytes,
                          _mm512_maskz_loadu_epi16(there, row));
    }
  }
}

void fill_bf16_fast(const FillCall& call) {
  const auto [rows, type, block_stride, count, inputs, tiles, groups, tile, scales, code_sums, tile_rows,
              group_stride] = call;
  if (type == FloatType::bf16 && block_stride == 16) return copy_bf16(call);
  if (type != FloatType::f32) return fill_bf16(call);
  for (int k = 0; k < tiles; ++k) {
    const int low = k * 32, high = low + 16;
    const __mmask16 low_lanes = first_lanes(inputs - low), high_lanes = first_lanes(inputs - high);
    for (int t = 0; t < count; ++t) {
      const float* row = static_cast<const float*>(rows[t]);
      const __m512 a = _mm512_maskz_loadu_ps(low_lanes, row + low / 16 * block_stride);
      const __m512 b = high_lanes ? _mm512_maskz_loadu_ps(high_lanes, row + high / 16 * block_stride)
                                  : _mm512_setzero_ps();
      _mm512_storeu_si512(tile + (std::size_t(k) * tile_rows + t) * kRowBytes,
                          narrow_bf16(a, b));
    }
  }
}

}  // namespace
}  // namespace moesaic
