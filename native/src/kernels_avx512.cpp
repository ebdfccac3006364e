// Vector products for CPUs with AVX-512, its bf16 dot product and VNNI: a line of 64 bytes of
// weights is multiplied as it comes from memory, 16 outputs side by side.
#include <immintrin.h>

#include "elementwise.h"

namespace moesaic {
namespace {

constexpr int kAhead = 4096;  // bytes to prefetch ahead in a strip
constexpr int kGroupTiles = format_of(Dtype::int8).group / 64;

inline void prefetch(const std::uint8_t* at) { _mm_prefetch((const char*)at + kAhead, _MM_HINT_T0); }
inline __m512i line(const std::uint8_t* at) { return _mm512_loadu_si512(at); }
inline __m512 dot(__m512 sum, __m512i w, const std::uint8_t* x) {
  return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)_mm512_set1_epi32(*(const int*)x));
}
inline __m512 scales_at(const std::uint8_t* at) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)at));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

// Independent chains: enough that no sum waits for the one before it. The same for one strip and
// for two, which is a matter of how many workers there are: sums must not depend on that.
template <int T> constexpr int kChains = T >= 8 ? 1 : T >= 4 ? 2 : 4;

template <int S, int T>
void bf16_rows(const std::uint8_t* const* strips, const MatrixLayout& matrix,
               const std::uint8_t* tokens, int tile_tokens, float* c, std::size_t c_stride) {
  constexpr int U = kChains<T>;
  __m512 sum[S][T][U];
  for (int s = 0; s < S; ++s)
    for (int t = 0; t < T; ++t)
      for (int u = 0; u < U; ++u) sum[s][t][u] = _mm512_setzero_ps();
  for (int k = 0; k < matrix.tiles; ++k) {
    const std::uint8_t* row = tokens + std::size_t(k) * tile_tokens * kRowBytes;
    const std::size_t at = std::size_t(k) * kTileBytes;
#pragma GCC unroll 16
    for (int p = 0; p < 16; ++p) {
#pragma GCC unroll 2
      for (int s = 0; s < S; ++s) {
        const std::uint8_t* from = strips[s] + at + p * 64;
        prefetch(from);
        const __m512i w = line(from);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t)
          sum[s][t][p % U] = dot(sum[s][t][p % U], w, row + t * kRowBytes + p * 4);
      }
    }
  }
  for (int s = 0; s < S; ++s)
    for (int t = 0; t < T; ++t) {
      for (int u = 1; u < U; ++u) sum[s][t][0] = _mm512_add_ps(sum[s][t][0], sum[s][t][u]);
      _mm512_storeu_ps(c + s * c_stride + t * 16, sum[s][t][0]);
    }
}

template <int S, int T>
void int8_rows(const std::uint8_t* const* strips, const MatrixLayout& matrix,
               const std::uint8_t* tokens, int tile_tokens, const float* scales,
               const std::int32_t* sums, float* c, std::size_t c_stride) {
  constexpr int U = kChains<T>;
  const __m512i flip = _mm512_set1_epi8((char)0x80);  // signed codes to codes + 128
  __m512 sum[S][T];
  for (int s = 0; s < S; ++s)
    for (int t = 0; t < T; ++t) sum[s][t] = _mm512_setzero_ps();
  for (int g = 0; g < matrix.groups; ++g) {
    __m512i part[S][T][U];
    for (int t = 0; t < T; ++t) {
      const __m512i start = _mm512_set1_epi32(-128 * sums[t * matrix.groups + g]);
      for (int s = 0; s < S; ++s) {
        part[s][t][0] = start;
        for (int u = 1; u < U; ++u) part[s][t][u] = _mm512_setzero_si512();
      }
    }
    for (int k = g * kGroupTiles; k < (g + 1) * kGroupTiles && k < matrix.tiles; ++k) {
      const std::uint8_t* row = tokens + std::size_t(k) * tile_tokens * kRowBytes;
      const std::size_t at = matrix.scales_bytes + std::size_t(k) * kTileBytes;
#pragma GCC unroll 16
      for (int p = 0; p < 16; ++p) {
#pragma GCC unroll 2
        for (int s = 0; s < S; ++s) {
          const std::uint8_t* from = strips[s] + at + p * 64;
          prefetch(from);
          const __m512i w = _mm512_xor_si512(line(from), flip);
#pragma GCC unroll 8
          for (int t = 0; t < T; ++t) {
            const __m512i x = _mm512_set1_epi32(*(const int*)(row + t * kRowBytes + p * 4));
            part[s][t][p % U] = _mm512_dpbusd_epi32(part[s][t][p % U], w, x);
          }
        }
      }
    }
    for (int s = 0; s < S; ++s) {
      const __m512 scale = scales_at(strips[s] + g * 32);
      for (int t = 0; t < T; ++t) {
        for (int u = 1; u < U; ++u) part[s][t][0] = _mm512_add_epi32(part[s][t][0], part[s][t][u]);
        const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(scales[t * matrix.groups + g]));
        sum[s][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(part[s][t][0]), both, sum[s][t]);
      }
    }
  }
  for (int s = 0; s < S; ++s)
    for (int t = 0; t < T; ++t) _mm512_storeu_ps(c + s * c_stride + t * 16, sum[s][t]);
}

// Weights stay unsigned codes (0 to 15, meaning -8 to 7); a token's 16-bit codes are multiplied as
// two bytes. Integers throughout a group, so nothing is lost in it.
template <int S, int T>
void int4_rows(const std::uint8_t* const* strips, const MatrixLayout& matrix,
               const std::uint8_t* tokens, int tile_tokens, const float* scales,
               const std::int32_t* sums, float* c, std::size_t c_stride) {
  const __m512i nibble = _mm512_set1_epi8(15);
  __m512 sum[S][T];
  for (int s = 0; s < S; ++s)
    for (int t = 0; t < T; ++t) sum[s][t] = _mm512_setzero_ps();
  for (int k = 0; k < matrix.tiles; ++k) {
    const std::uint8_t* row = tokens + std::size_t(k) * tile_tokens * kRowBytes;
    const std::size_t at = matrix.scales_bytes + std::size_t(k) * 256;
#pragma GCC unroll 2
    for (int s = 0; s < S; ++s) {
      __m512i high[T], low[T];
      for (int t = 0; t < T; ++t) {
        high[t] = _mm512_setzero_si512();
        low[t] = _mm512_set1_epi32(-8 * sums[t * matrix.groups + k]);
      }
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        const std::uint8_t* from = strips[s] + at + r * 64;
        prefetch(from);
        const __m512i eight = line(from);
        const __m512i first = _mm512_and_si512(eight, nibble);
        const __m512i second = _mm512_and_si512(_mm512_srli_epi16(eight, 4), nibble);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
          const int* x = (const int*)(row + t * kRowBytes + r * 8);
          high[t] = _mm512_dpbusd_epi32(high[t], first, _mm512_set1_epi32(x[0]));
          low[t] = _mm512_dpbusd_epi32(low[t], first, _mm512_set1_epi32(x[8]));
          high[t] = _mm512_dpbusd_epi32(high[t], second, _mm512_set1_epi32(x[1]));
          low[t] = _mm512_dpbusd_epi32(low[t], second, _mm512_set1_epi32(x[9]));
        }
      }
      const __m512 scale = scales_at(strips[s] + k * 32);
      for (int t = 0; t < T; ++t) {
        const __m512i codes = _mm512_add_epi32(_mm512_slli_epi32(high[t], 8), low[t]);
        const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(scales[t * matrix.groups + k]));
        sum[s][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(codes), both, sum[s][t]);
      }
    }
  }
  for (int s = 0; s < S; ++s)
    for (int t = 0; t < T; ++t) _mm512_storeu_ps(c + s * c_stride + t * 16, sum[s][t]);
}

template <Dtype dtype, int S, int T>
void rows(const std::uint8_t* const* strips, const MatrixLayout& matrix, const Panel& panel,
          int token, float* c) {
  const int tile = token / kTileTokens;
  const std::uint8_t* tokens = panel.tile(tile) + token % kTileTokens * kRowBytes;
  const int stride = panel.tile_tokens(tile);
  const std::size_t c_stride = std::size_t(panel.tokens) * 16;
  if constexpr (dtype == Dtype::int8)
    int8_rows<S, T>(strips, matrix, tokens, stride, panel.scales + token * panel.groups,
                    panel.sums + token * panel.groups, c, c_stride);
  else if constexpr (dtype == Dtype::int4)
    int4_rows<S, T>(strips, matrix, tokens, stride, panel.scales + token * panel.groups,
                    panel.sums + token * panel.groups, c, c_stride);
  else
    bf16_rows<S, T>(strips, matrix, tokens, stride, c, c_stride);
}

template <Dtype dtype, int S>
void strips_product(const std::uint8_t* const* strips, const MatrixLayout& matrix,
                    const Panel& panel, float* c) {
  int token = 0;
  while (token < panel.tokens) {
    const int left = panel.tile_tokens(token / kTileTokens) - token % kTileTokens;
    float* to = c + token * 16;
    if (left >= 8) {
      rows<dtype, S, 8>(strips, matrix, panel, token, to);
      token += 8;
    } else if (left >= 4) {
      rows<dtype, S, 4>(strips, matrix, panel, token, to);
      token += 4;
    } else if (left >= 2) {
      rows<dtype, S, 2>(strips, matrix, panel, token, to);
      token += 2;
    } else {
      rows<dtype, S, 1>(strips, matrix, panel, token, to);
      token += 1;
    }
  }
}

template <Dtype dtype>
void product(const std::uint8_t* const* strips, int count, const MatrixLayout& matrix,
             const Panel& panel, float* c, std::uint8_t*) {
  for (int s = 0; s < count; s += 2) {
    float* to = c + std::size_t(s) * panel.tokens * 16;
    if (count - s > 1)
      strips_product<dtype, 2>(strips + s, matrix, panel, to);
    else
      strips_product<dtype, 1>(strips + s, matrix, panel, to);
  }
}

// What `elementwise.h` does in the compiler's vectors, in this instruction set's own: with hundreds of
// tokens these take a tenth of the time.

inline __m512 load_masked(const void* from, Value value, __mmask16 there) {
  if (value == Value::f32) return _mm512_maskz_loadu_ps(there, from);
  const __m256i half = _mm256_maskz_loadu_epi16(there, from);
  if (value == Value::f16) return _mm512_cvtph_ps(half);
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
  // Below -87 the result is 0 in any case; max() keeps its second operand where one is no number.
  const __m512 negative =
      _mm512_sub_ps(_mm512_setzero_ps(), _mm512_max_ps(_mm512_set1_ps(-87.0f), x));
  const __m512 below = _mm512_add_ps(_mm512_set1_ps(1.0f), exp_fast(negative));
  // 1 / below, to the last bit or two: an estimate and one step of Newton's.
  const __m512 near = _mm512_rcp14_ps(below);
  const __m512 inverse = _mm512_mul_ps(near, _mm512_fnmadd_ps(below, near, _mm512_set1_ps(2.0f)));
  return _mm512_mul_ps(x, inverse);
}

// To about 1e-4 of its value: what is to be rounded to eight bits needs no more.
inline __m512 silu_coarse(__m512 x) {
  const __m512 negative =
      _mm512_sub_ps(_mm512_setzero_ps(), _mm512_max_ps(_mm512_set1_ps(-87.0f), x));
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

void activate_fast(Activation kind, const float* gate, const float* up, int tokens, float* rows,
                   std::size_t row_stride) {
  if (kind != Activation::silu) return activate(kind, gate, up, tokens, rows, row_stride);
  for (int t = 0; t < tokens; ++t)
    _mm512_storeu_ps(rows + t * row_stride, _mm512_mul_ps(silu_fast(_mm512_loadu_ps(gate + t * 16)),
                                                          _mm512_loadu_ps(up + t * 16)));
}

void activate_bf16_fast(Activation kind, const float* gate, const float* up, int tokens,
                        std::uint8_t* to, std::size_t stride) {
  if (kind != Activation::silu) return activate_bf16(kind, gate, up, tokens, to, stride);
  for (int t = 0; t < tokens; ++t) {
    const __m512 inner =
        _mm512_mul_ps(silu_coarse(_mm512_loadu_ps(gate + t * 16)), _mm512_loadu_ps(up + t * 16));
    _mm256_storeu_si256((__m256i*)(to + t * stride), (__m256i)_mm512_cvtneps_pbh(inner));
  }
}

void fill_int8_fast(const void* const* rows, Value value, std::size_t step, int count, int inputs,
                    int tiles, std::uint8_t* tile, float* scales, std::int32_t* sums, int groups) {
  constexpr int kGroup = format_of(Dtype::int8).group, kVectors = kGroup / 16;
  for (int t = 0; t < count; ++t) {
    for (int g = 0; g < groups; ++g) {
      __m512 v[kVectors];
      __m512 top = _mm512_setzero_ps(), zero = _mm512_setzero_ps();
      for (int i = 0; i < kVectors; ++i) {
        const int column = g * kGroup + i * 16;
        const __mmask16 there = first_lanes(inputs - column);
        v[i] = there ? load_masked(block_at(rows[t], value, column, step), value, there)
                     : _mm512_setzero_ps();
        top = _mm512_max_ps(top, _mm512_abs_ps(v[i]));
        zero = _mm512_fmadd_ps(v[i], _mm512_setzero_ps(), zero);
      }
      const float largest = _mm512_reduce_max_ps(top), poison = _mm512_reduce_add_ps(zero);
      const __m512 inverse = _mm512_set1_ps(inverse_of(largest, 127.0f));
      scales[t * groups + g] = largest / 127.0f + poison;
      __m512i sum = _mm512_setzero_si512();
      for (int i = 0; i < kVectors; ++i) {
        const int k = g * kGroupTiles + i / 4;
        if (k >= tiles) break;
        const __m512i codes = _mm512_cvtps_epi32(_mm512_mul_ps(v[i], inverse));
        _mm_storeu_si128((__m128i*)(tile + (std::size_t(k) * count + t) * kRowBytes + i % 4 * 16),
                         _mm512_cvtsepi32_epi8(codes));
        sum = _mm512_add_epi32(sum, codes);
      }
      sums[t * groups + g] = poison == 0.0f ? _mm512_reduce_add_epi32(sum) : 0;  // as in Range
    }
  }
}

// As in elementwise.h, where the order of bytes is explained.
void fill_int16_fast(const void* const* rows, Value value, std::size_t step, int count, int inputs,
                     int tiles, std::uint8_t* tile, float* scales, std::int32_t* sums, int groups) {
  const __m256i order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15));
  for (int t = 0; t < count; ++t) {
    for (int k = 0; k < tiles; ++k) {
      __m512 v[2];
      for (int i = 0; i < 2; ++i) {
        const int column = k * 32 + i * 16;
        const __mmask16 there = first_lanes(inputs - column);
        v[i] = there ? load_masked(block_at(rows[t], value, column, step), value, there)
                     : _mm512_setzero_ps();
      }
      const __m512 zero = _mm512_setzero_ps();
      const float largest =
          _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(v[0]), _mm512_abs_ps(v[1])));
      const float poison =
          _mm512_reduce_add_ps(_mm512_fmadd_ps(v[0], zero, _mm512_mul_ps(v[1], zero)));
      const __m512 inverse = _mm512_set1_ps(inverse_of(largest, 32512.0f));
      scales[t * groups + k] = largest / 32512.0f + poison;
      __m128i high[2], low[2];
      __m512i sum = _mm512_setzero_si512();
      for (int i = 0; i < 2; ++i) {
        const __m512i codes = _mm512_cvtps_epi32(_mm512_mul_ps(v[i], inverse));
        const __m512i highs = _mm512_srai_epi32(_mm512_add_epi32(codes, _mm512_set1_epi32(128)), 8);
        high[i] = _mm512_cvtepi32_epi8(highs);
        low[i] = _mm512_cvtepi32_epi8(codes);  // the low byte: 256 times the high one is gone
        sum = _mm512_add_epi32(sum, codes);
      }
      sums[t * groups + k] = poison == 0.0f ? _mm512_reduce_add_epi32(sum) : 0;  // as in Range
      std::uint8_t* to = tile + (std::size_t(k) * count + t) * kRowBytes;
      _mm256_storeu_si256((__m256i*)to,
                          _mm256_shuffle_epi8(_mm256_set_m128i(high[1], high[0]), order));
      _mm256_storeu_si256((__m256i*)(to + 32),
                          _mm256_shuffle_epi8(_mm256_set_m128i(low[1], low[0]), order));
    }
  }
}

// Tile after tile rather than token after token: what is written lies side by side.
void copy_bf16(const void* const* rows, int count, int inputs, int tiles, std::uint8_t* tile) {
  for (int k = 0; k < tiles; ++k) {
    const int left = inputs - k * 32;
    const __mmask32 there = left >= 32 ? ~__mmask32(0) : (__mmask32(1) << left) - 1;
    for (int t = 0; t < count; ++t) {
      const auto* row = static_cast<const std::uint16_t*>(rows[t]) + k * 32;
      _mm512_storeu_si512(tile + (std::size_t(k) * count + t) * kRowBytes,
                          _mm512_maskz_loadu_epi16(there, row));
    }
  }
}

void fill_bf16_fast(const void* const* rows, Value value, std::size_t step, int count, int inputs,
                    int tiles, std::uint8_t* tile, float* scales, std::int32_t* sums, int groups) {
  if (value == Value::bf16 && step == 16) return copy_bf16(rows, count, inputs, tiles, tile);
  if (value != Value::f32)
    return fill_bf16(rows, value, step, count, inputs, tiles, tile, scales, sums, groups);
  for (int k = 0; k < tiles; ++k) {
    const int low = k * 32, high = low + 16;
    const __mmask16 low_lanes = first_lanes(inputs - low), high_lanes = first_lanes(inputs - high);
    for (int t = 0; t < count; ++t) {
      const float* row = static_cast<const float*>(rows[t]);
      const __m512 a = _mm512_maskz_loadu_ps(low_lanes, row + low / 16 * step);
      const __m512 b = high_lanes ? _mm512_maskz_loadu_ps(high_lanes, row + high / 16 * step)
                                  : _mm512_setzero_ps();
      _mm512_storeu_si512(tile + (std::size_t(k) * count + t) * kRowBytes,
                          (__m512i)_mm512_cvtne2ps_pbh(b, a));
    }
  }
}

// Row after row, as the matrix lies in memory: one stream, which the hardware runs ahead of.
void score_fast(const void* x, const void* matrix, Value value, int rows, int count, float* scores) {
  if (value != Value::bf16 || count % 128) return score(x, matrix, value, rows, count, scores);
  const auto* from = static_cast<const std::uint8_t*>(matrix);
  const auto* token = static_cast<const std::uint8_t*>(x);
  const std::size_t row_bytes = std::size_t(count) * 2;
  for (int row = 0; row < rows; ++row, from += row_bytes) {
    __m512 sum[4] = {};
    for (std::size_t at = 0; at < row_bytes; at += 256) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        prefetch(from + at + i * 64);
        sum[i] = _mm512_dpbf16_ps(sum[i], (__m512bh)line(from + at + i * 64),
                                  (__m512bh)line(token + at + i * 64));
      }
    }
    scores[row] = _mm512_reduce_add_ps(
        _mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3])));
  }
}

const Kernels table = {
    "avx512",
    {product<Dtype::bf16>, product<Dtype::int8>, product<Dtype::int4>},
    {nullptr, nullptr, nullptr},
    fill_bf16_fast, fill_int8_fast, fill_int16_fast, activate_fast, activate_bf16_fast, scatter, narrow, normalize, score_fast, nullptr,
};

}  // namespace

const Kernels* avx512_kernels() { return &table; }

void read_through_avx512(const std::uint8_t* from, std::size_t bytes) {
  __m512i all[4] = {};
  for (std::size_t at = 0; at + 256 <= bytes; at += 256)
    for (int i = 0; i < 4; ++i) {
      prefetch(from + at + i * 64);
      all[i] = _mm512_xor_si512(all[i], line(from + at + i * 64));
    }
  const __m512i one = _mm512_xor_si512(_mm512_xor_si512(all[0], all[1]), _mm512_xor_si512(all[2], all[3]));
  volatile int seen = _mm512_cvtsi512_si32(one);
  (void)seen;
}

}  // namespace moesaic
