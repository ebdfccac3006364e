// Vector products for CPUs with AVX-512, its bf16 dot product and VNNI: a line of 64 bytes of weights is
// multiplied as it comes from memory, 16 outputs side by side. Local to the file that includes it.
#pragma once

#include <immintrin.h>

#include <algorithm>

#include "products/kernels.h"

namespace moesaic {
namespace {

constexpr int kAhead = 4096;  // bytes to prefetch ahead
constexpr int kGroupTiles = format_of(Dtype::int8).group / 64;
constexpr std::size_t kGroupBytes = std::size_t(kGroupTiles) * kTileBytes;

inline __m512 dot(__m512 sum, __m512i w, const std::uint8_t* x) {
  return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)_mm512_set1_epi32(*(const int*)x));
}
inline __m512 scales_at(const std::uint8_t* at) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)at));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

// A strip is read in several places at once: memory gives more to somebody who asks for more. A place has
// `each` of the strip's pieces (tiles or groups), the last one what is left besides. How many places there
// are depends on the tokens, never on how many strips are read side by side: that is a matter of who else
// is there, and sums must not depend on it.
template <int P>
class Places {
 public:
  Places(const std::uint8_t* const* strips, int side_by_side, const MatrixLayout& matrix, std::size_t piece,
         int each)
      : strips_(strips),
        side_by_side_(side_by_side),
        head_(matrix.scales_bytes),
        bytes_(each * piece),
        last_bytes_(matrix.strip_bytes - head_ - (P - 1) * bytes_) {}

  // Byte `at` of a place of strip s. What lies ahead there is fetched, at the end the beginning of the
  // same place in the strip that is read next.
  __m512i line(int s, int place, std::size_t at) const {
    const std::size_t from = head_ + place * bytes_ + at, end = place == P - 1 ? last_bytes_ : bytes_;
    const bool inside = at + kAhead < end;
    const std::uint8_t* ahead = strips_[inside ? s : s + side_by_side_];
    _mm_prefetch((const char*)(std::uintptr_t(ahead) + from + kAhead - (inside ? 0 : end)), _MM_HINT_T0);
    return _mm512_loadu_si512(strips_[s] + from);
  }

  // The same ahead of a piece's scales, of which there are so many bytes for `piece` bytes of weights.
  void fetch_scales(int s, int place, std::size_t at, std::size_t piece, std::size_t scales) const {
    const std::size_t from = place * bytes_ + at + kAhead, end = place == P - 1 ? last_bytes_ : bytes_;
    const bool inside = at + kAhead < end;
    const std::uint8_t* ahead = strips_[inside ? s : s + side_by_side_];
    _mm_prefetch((const char*)ahead + (from - (inside ? 0 : end)) / piece * scales, _MM_HINT_T0);
  }

 private:
  const std::uint8_t* const* strips_;
  const int side_by_side_;
  const std::size_t head_, bytes_, last_bytes_;
};

// Each place has sums of its own: enough that none waits for the one before it.
template <int T> constexpr int kPlaces = T >= 8 ? 1 : T >= 4 ? 2 : 4;

template <int S, int T>
void bf16_rows(const std::uint8_t* const* strips, const MatrixLayout& matrix,
               const std::uint8_t* tokens, int tile_tokens, float* c, std::size_t c_stride) {
  constexpr int P = kPlaces<T>;
  __m512 sum[S][T][P];
  for (int s = 0; s < S; ++s)
    for (int t = 0; t < T; ++t)
      for (int u = 0; u < P; ++u) sum[s][t][u] = _mm512_setzero_ps();
  const int each = matrix.tiles / P;
  const std::size_t row_bytes = std::size_t(tile_tokens) * kRowBytes;
  const Places<P> places(strips, S, matrix, kTileBytes, each);
  for (int k = 0; k < each; ++k) {
#pragma GCC unroll 16
    for (int p = 0; p < 16; ++p) {
#pragma GCC unroll 4
      for (int u = 0; u < P; ++u) {
        const std::uint8_t* row = tokens + (u * each + k) * row_bytes + p * 4;
#pragma GCC unroll 2
        for (int s = 0; s < S; ++s) {
          const __m512i w = places.line(s, u, std::size_t(k) * kTileBytes + p * 64);
#pragma GCC unroll 8
          for (int t = 0; t < T; ++t) sum[s][t][u] = dot(sum[s][t][u], w, row + t * kRowBytes);
        }
      }
    }
  }
  for (int k = P * each; k < matrix.tiles; ++k)
#pragma GCC unroll 16
    for (int p = 0; p < 16; ++p)
      for (int s = 0; s < S; ++s) {
        const __m512i w = places.line(s, P - 1, std::size_t(k - (P - 1) * each) * kTileBytes + p * 64);
        for (int t = 0; t < T; ++t)
          sum[s][t][p % P] = dot(sum[s][t][p % P], w, tokens + k * row_bytes + t * kRowBytes + p * 4);
      }
  for (int s = 0; s < S; ++s)
    for (int t = 0; t < T; ++t) {
      for (int u = 1; u < P; ++u) sum[s][t][0] = _mm512_add_ps(sum[s][t][0], sum[s][t][u]);
      _mm512_storeu_ps(c + s * c_stride + t * 16, sum[s][t][0]);
    }
}

// Tokens with their codes' scales and sums.
struct Coded {
  const std::uint8_t* tokens;
  std::size_t row_bytes;  // from tile to tile
  const float* scales;
  const std::int32_t* sums;
};

// One group in each of U places from `place` on, `within` from its beginning: group numbers `first` + u *
// `apart`, each of `tiles` tiles.
template <int U, int S, int T, int P>
inline void int8_groups(const std::uint8_t* const* strips, const Places<P>& places,
                        const MatrixLayout& matrix, const Coded& x, int place, int within, int first,
                        int apart, int tiles, __m512 (&sum)[S][T]) {
  const __m512i flip = _mm512_set1_epi8((char)0x80);  // signed codes to codes + 128
  __m512i part[S][T][U];
  for (int t = 0; t < T; ++t)
    for (int u = 0; u < U; ++u) {
      const __m512i start = _mm512_set1_epi32(-128 * x.sums[t * matrix.groups + first + u * apart]);
      for (int s = 0; s < S; ++s) part[s][t][u] = start;
    }
  for (int k = 0; k < tiles; ++k) {
#pragma GCC unroll 16
    for (int p = 0; p < 16; ++p) {
#pragma GCC unroll 4
      for (int u = 0; u < U; ++u) {
        const int tile = (first + u * apart) * kGroupTiles + k;
        const std::size_t at = (std::size_t(within) * kGroupTiles + k) * kTileBytes + p * 64;
#pragma GCC unroll 2
        for (int s = 0; s < S; ++s) {
          const __m512i w = _mm512_xor_si512(places.line(s, place + u, at), flip);
#pragma GCC unroll 8
          for (int t = 0; t < T; ++t) {
            const int* code = (const int*)(x.tokens + tile * x.row_bytes + t * kRowBytes + p * 4);
            part[s][t][u] = _mm512_dpbusd_epi32(part[s][t][u], w, _mm512_set1_epi32(*code));
          }
        }
      }
    }
  }
  for (int u = 0; u < U; ++u)
    for (int s = 0; s < S; ++s) {
      const int g = first + u * apart;
      places.fetch_scales(s, place + u, std::size_t(within) * kGroupBytes, kGroupBytes, 32);
      const __m512 scale = scales_at(strips[s] + g * 32);
      for (int t = 0; t < T; ++t) {
        const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(x.scales[t * matrix.groups + g]));
        sum[s][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(part[s][t][u]), both, sum[s][t]);
      }
    }
}

template <int S, int T>
void int8_rows(const std::uint8_t* const* strips, const MatrixLayout& matrix, const Coded& x, float* c,
               std::size_t c_stride) {
  constexpr int P = kPlaces<T>;
  __m512 sum[S][T];
  for (int s = 0; s < S; ++s)
    for (int t = 0; t < T; ++t) sum[s][t] = _mm512_setzero_ps();
  const int each = matrix.tiles / kGroupTiles / P;
  const Places<P> places(strips, S, matrix, kGroupBytes, each);
  for (int g = 0; g < each; ++g)
    int8_groups<P>(strips, places, matrix, x, 0, g, g, each, kGroupTiles, sum);
  for (int g = P * each; g < matrix.groups; ++g) {
    const int tiles = std::min(kGroupTiles, matrix.tiles - g * kGroupTiles);
    int8_groups<1>(strips, places, matrix, x, P - 1, g - (P - 1) * each, g, 0, tiles, sum);
  }
  for (int s = 0; s < S; ++s)
    for (int t = 0; t < T; ++t) _mm512_storeu_ps(c + s * c_stride + t * 16, sum[s][t]);
}

// Weights stay unsigned codes (0 to 15, meaning -8 to 7); a token's 16-bit codes are multiplied as
// two bytes. Integers throughout a group, so nothing is lost in it.
template <int T, int P>
inline void int4_tile(const Places<P>& places, int s, int place, std::size_t at, const std::uint8_t* scale_at,
                      const MatrixLayout& matrix, const Coded& x, int tile, __m512 (&sum)[T]) {
  const __m512i nibble = _mm512_set1_epi8(15);
  const std::uint8_t* row = x.tokens + tile * x.row_bytes;
  __m512i high[T], low[T];
  for (int t = 0; t < T; ++t) {
    high[t] = _mm512_setzero_si512();
    low[t] = _mm512_set1_epi32(-8 * x.sums[t * matrix.groups + tile]);
  }
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    const __m512i eight = places.line(s, place, at + r * 64);
    const __m512i first = _mm512_and_si512(eight, nibble);
    const __m512i second = _mm512_and_si512(_mm512_srli_epi16(eight, 4), nibble);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const int* code = (const int*)(row + t * kRowBytes + r * 8);
      high[t] = _mm512_dpbusd_epi32(high[t], first, _mm512_set1_epi32(code[0]));
      low[t] = _mm512_dpbusd_epi32(low[t], first, _mm512_set1_epi32(code[8]));
      high[t] = _mm512_dpbusd_epi32(high[t], second, _mm512_set1_epi32(code[1]));
      low[t] = _mm512_dpbusd_epi32(low[t], second, _mm512_set1_epi32(code[9]));
    }
  }
  places.fetch_scales(s, place, at, 256, 32);
  const __m512 scale = scales_at(scale_at);
  for (int t = 0; t < T; ++t) {
    const __m512i codes = _mm512_add_epi32(_mm512_slli_epi32(high[t], 8), low[t]);
    const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(x.scales[t * matrix.groups + tile]));
    sum[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(codes), both, sum[t]);
  }
}

template <int S, int T>
void int4_rows(const std::uint8_t* const* strips, const MatrixLayout& matrix, const Coded& x, float* c,
               std::size_t c_stride) {
  constexpr int P = T >= 4 ? 1 : 2;  // more would be worth less than what they take to compute
  __m512 sum[S][T];
  for (int s = 0; s < S; ++s)
    for (int t = 0; t < T; ++t) sum[s][t] = _mm512_setzero_ps();
  const int each = matrix.tiles / P;
  const Places<P> places(strips, S, matrix, 256, each);
  for (int k = 0; k < each; ++k)
#pragma GCC unroll 4
    for (int u = 0; u < P; ++u)
#pragma GCC unroll 2
      for (int s = 0; s < S; ++s)
        int4_tile(places, s, u, std::size_t(k) * 256, strips[s] + (u * each + k) * 32, matrix, x,
                  u * each + k, sum[s]);
  for (int k = P * each; k < matrix.tiles; ++k)
    for (int s = 0; s < S; ++s)
      int4_tile(places, s, P - 1, std::size_t(k - (P - 1) * each) * 256, strips[s] + k * 32, matrix, x, k,
                sum[s]);
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
  const Coded coded{tokens, std::size_t(stride) * kRowBytes, panel.scales + token * panel.groups,
                    panel.sums + token * panel.groups};
  if constexpr (dtype == Dtype::int8)
    int8_rows<S, T>(strips, matrix, coded, c, c_stride);
  else if constexpr (dtype == Dtype::int4)
    int4_rows<S, T>(strips, matrix, coded, c, c_stride);
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

}  // namespace
}  // namespace moesaic
