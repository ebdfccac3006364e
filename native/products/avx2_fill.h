// Quantising inputs in AVX2 intrinsics: what `fill_int8` and `fill_int4` of elementwise.h do, which between
// the products of a decode step one worker does alone. Internal linkage, as in elementwise.h.
#pragma once

#include "products/elementwise.h"
#include "products/lanes.h"

namespace moesaic {
namespace {

// Eight values of a row in bf16 or fp32, from column `from` on.
inline __m256 load_eight(const FillCall& call, int row, int from) {
  const void* at = block_at(call.rows[row], call.type, from / 16 * 16, call.block_stride);
  if (call.type == FloatType::f32) return _mm256_loadu_ps(static_cast<const float*>(at) + from % 16);
  return (__m256)widened_bf16(static_cast<const std::uint16_t*>(at) + from % 16);
}

inline float largest_of(__m256 v) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
inline std::int32_t total_of(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_unpackhi_epi64(s, s));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 1)));
}

// 32 numbers in the range of a byte, in four vectors, as bytes in their order.
inline __m256i to_bytes(const __m256i (&v)[4]) {
  const __m256i mixed = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
  return _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// A group of values: loaded, with its scale and the factor that makes codes of them.
template <int Vectors>
struct FillGroup {
  __m256 v[Vectors];
  float scale, poison;  // poison: 0, or NaN if a value is not finite
  __m256 inverse;

  FillGroup(const FillCall& call, int row, int from, float top_code) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 top = _mm256_setzero_ps(), zero = _mm256_setzero_ps();
    for (int i = 0; i < Vectors; ++i) {
      v[i] = load_eight(call, row, from + i * 8);
      top = _mm256_max_ps(_mm256_andnot_ps(sign, v[i]), top);  // NaN is not larger
      zero = _mm256_fmadd_ps(v[i], _mm256_setzero_ps(), zero);
    }
    const float largest = largest_of(top);
    poison = 0;
    for (int i = 0; i < 8; ++i) poison += ((Floats)zero)[i];
    scale = largest / top_code + poison;
    inverse = _mm256_set1_ps(inverse_of(largest, top_code));
  }
  __m256i codes(int i) const { return _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse)); }
  std::int32_t sum(__m256i codes) const { return poison == 0.0f ? total_of(codes) : 0; }  // see GroupRange
};

inline bool whole_rows(const FillCall& call, int group) {
  return call.type != FloatType::f16 && call.inputs % group == 0;
}

void fill_int8_avx2(const FillCall& call) {
  constexpr int kGroup = format_of(Dtype::int8).group, kTile = format_of(Dtype::int8).tile_inputs;
  if (!whole_rows(call, kGroup)) return fill_int8(call);
  for (int t = 0; t < call.count; ++t)
    for (int g = 0; g < call.groups; ++g) {
      const FillGroup<kGroup / 8> group(call, t, g * kGroup, 127.0f);
      __m256i sum = _mm256_setzero_si256();
      for (int i = 0; i < kGroup / 32; ++i) {
        __m256i codes[4];
        for (int j = 0; j < 4; ++j) {
          codes[j] = group.codes(i * 4 + j);
          sum = _mm256_add_epi32(sum, codes[j]);
        }
        const int column = g * kGroup + i * 32;
        std::uint8_t* to = call.tile + (std::size_t(column / kTile) * call.tile_rows + t) * kRowBytes;
        _mm256_storeu_si256((__m256i*)(to + column % kTile), to_bytes(codes));
      }
      call.scales[t * call.group_stride + g] = group.scale;
      call.code_sums[t * call.group_stride + g] = group.sum(sum);
    }
}

template <bool Bytes>
void fill_int4_avx2(const FillCall& call) {
  if (!whole_rows(call, 32)) return fill_int4<Bytes>(call);
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15));
  for (int t = 0; t < call.count; ++t)
    for (int k = 0; k < call.tiles; ++k) {
      const FillGroup<4> group(call, t, k * 32, kTopCode<Bytes>);
      __m256i high[4], low[4], sum = _mm256_setzero_si256();
      for (int i = 0; i < 4; ++i) {
        const __m256i codes = group.codes(i);
        high[i] = Bytes ? codes : _mm256_srai_epi32(_mm256_add_epi32(codes, _mm256_set1_epi32(128)), 8);
        low[i] = _mm256_sub_epi32(codes, _mm256_slli_epi32(high[i], 8));
        sum = _mm256_add_epi32(sum, codes);
      }
      std::uint8_t* to = call.tile + (std::size_t(k) * call.tile_rows + t) * kRowBytes;
      _mm256_storeu_si256((__m256i*)to, _mm256_shuffle_epi8(to_bytes(high), order));
      if (!Bytes) _mm256_storeu_si256((__m256i*)(to + 32), _mm256_shuffle_epi8(to_bytes(low), order));
      call.scales[t * call.group_stride + k] = group.scale;
      call.code_sums[t * call.group_stride + k] = group.sum(sum);
    }
}

}  // namespace
}  // namespace moesaic
