// Products for CPUs with AVX-512, its bf16 dot product and VNNI: a line of 64 bytes of weights is one
// register, 16 outputs side by side. Internal linkage, as in elementwise.h.
#pragma once

#include <immintrin.h>

#include <algorithm>

#include "products/kernels.h"

namespace moesaic {
namespace {

constexpr int kPrefetchBytes = 4096;  // distance ahead of the read position
constexpr int kGroupTiles = format_of(Dtype::int8).group / 64;
constexpr std::size_t kGroupBytes = std::size_t(kGroupTiles) * kTileBytes;

inline __m512 dot(__m512 sum, __m512i w, const std::uint8_t* x) {
  return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)_mm512_set1_epi32(*(const int*)x));
}
inline __m512 scales_at(const std::uint8_t* at) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)at));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

// Concurrent read streams over a strip: several streams keep more memory requests in flight than one. A
// stream covers `units` of the strip's units (tiles or groups of `unit_bytes`), the last stream also what
// is left over. The number of streams depends on the number of tokens only, never on how many strips are
// read side by side: that varies with the number of workers, and the order of summation must not.
template <int Streams>
class ReadStreams {
 public:
  ReadStreams(const std::uint8_t* const* strips, int side_by_side, const MatrixLayout& matrix,
              std::size_t unit_bytes, int units)
      : strips_(strips),
        side_by_side_(side_by_side),
        head_(matrix.scales_bytes),
        bytes_(units * unit_bytes),
        last_bytes_(matrix.strip_bytes - head_ - (Streams - 1) * bytes_) {}

  // Loads the line at byte `at` of a stream of strip s and prefetches ahead in that stream; near the
  // stream's end, the beginning of the same stream of the strip that is read next.
  __m512i load(int s, int stream, std::size_t at) const {
    const std::size_t from = head_ + stream * bytes_ + at;
    const std::size_t end = stream == Streams - 1 ? last_bytes_ : bytes_;
    const bool inside = at + kPrefetchBytes < end;
    const std::uint8_t* ahead = strips_[inside ? s : s + side_by_side_];
    _mm_prefetch((const char*)(std::uintptr_t(ahead) + from + kPrefetchBytes - (inside ? 0 : end)),
                 _MM_HINT_T0);
    return _mm512_loadu_si512(strips_[s] + from);
  }

  // The same for the scales, of which there are `scale_bytes` for each `unit_bytes` of weights.
  void prefetch_scales(int s, int stream, std::size_t at, std::size_t unit_bytes,
                       std::size_t scale_bytes) const {
    const std::size_t from = stream * bytes_ + at + kPrefetchBytes;
    const std::size_t end = stream == Streams - 1 ? last_bytes_ : bytes_;
    const bool inside = at + kPrefetchBytes < end;
    const std::uint8_t* ahead = strips_[inside ? s : s + side_by_side_];
    _mm_prefetch((const char*)ahead + (from - (inside ? 0 : end)) / unit_bytes * scale_bytes, _MM_HINT_T0);
  }

 private:
  const std::uint8_t* const* strips_;
  const int side_by_side_;
  const std::size_t head_, bytes_, last_bytes_;
};

// Each stream has its own accumulators: enough independent ones to hide the dot product's latency.
template <int T>
constexpr int kReadStreams = T >= 8   ? 1
                             : T >= 4 ? 2
                                      : 4;

template <int S, int T>
void bf16_rows(const std::uint8_t* const* strips, const MatrixLayout& matrix, const std::uint8_t* tokens,
               int tile_tokens, float* c, std::size_t c_stride) {
  constexpr int P = kReadStreams<T>;
  __m512 sum[S][T][P];
  for (int s = 0; s < S; ++s)
    for (int t = 0; t < T; ++t)
      for (int u = 0; u < P; ++u) sum[s][t][u] = _mm512_setzero_ps();
  const int units = matrix.tiles / P;
  const std::size_t row_bytes = std::size_t(tile_tokens) * kRowBytes;
  const ReadStreams<P> streams(strips, S, matrix, kTileBytes, units);
  for (int k = 0; k < units; ++k) {
#pragma GCC unroll 16
    for (int p = 0; p < 16; ++p) {
#pragma GCC unroll 4
      for (int u = 0; u < P; ++u) {
        const std::uint8_t* row = tokens + (u * units + k) * row_bytes + p * 4;
#pragma GCC unroll 2
        for (int s = 0; s < S; ++s) {
          const __m512i w = streams.load(s, u, std::size_t(k) * kTileBytes + p * 64);
#pragma GCC unroll 8
          for (int t = 0; t < T; ++t) sum[s][t][u] = dot(sum[s][t][u], w, row + t * kRowBytes);
        }
      }
    }
  }
  for (int k = P * units; k < matrix.tiles; ++k)
#pragma GCC unroll 16
    for (int p = 0; p < 16; ++p)
      for (int s = 0; s < S; ++s) {
        const __m512i w = streams.load(s, P - 1, std::size_t(k - (P - 1) * units) * kTileBytes + p * 64);
        for (int t = 0; t < T; ++t)
          sum[s][t][p % P] = dot(sum[s][t][p % P], w, tokens + k * row_bytes + t * kRowBytes + p * 4);
      }
  for (int s = 0; s < S; ++s)
    for (int t = 0; t < T; ++t) {
      for (int u = 1; u < P; ++u) sum[s][t][0] = _mm512_add_ps(sum[s][t][0], sum[s][t][u]);
      _mm512_storeu_ps(c + s * c_stride + t * 16, sum[s][t][0]);
    }
}

struct QuantizedTokens {
  const std::uint8_t* tokens;
  std::size_t row_bytes;  // from tile to tile
  const float* scales;
  const std::int32_t* code_sums;
};

// One group of inputs in each of U streams, starting with `stream`: the `within`-th group of a stream, and
// of the strip the groups `first` + u * `apart`, each of `tiles` tiles.
struct GroupSpan {
  int stream, within, first, apart, tiles;
};

template <int U, int S, int T, int P>
inline void int8_groups(const std::uint8_t* const* strips, const ReadStreams<P>& streams,
                        const MatrixLayout& matrix, const QuantizedTokens& x, const GroupSpan& span,
                        __m512 (&sum)[S][T]) {
  const auto [stream, within, first, apart, tiles] = span;
  const __m512i flip = _mm512_set1_epi8((char)0x80);  // signed codes to codes + 128
  __m512i part[S][T][U];
  for (int t = 0; t < T; ++t)
    for (int u = 0; u < U; ++u) {
      const __m512i start = _mm512_set1_epi32(-128 * x.code_sums[t * matrix.groups + first + u * apart]);
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
          const __m512i w = _mm512_xor_si512(streams.load(s, stream + u, at), flip);
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
      streams.prefetch_scales(s, stream + u, std::size_t(within) * kGroupBytes, kGroupBytes, 32);
      const __m512 scale = scales_at(strips[s] + g * 32);
      for (int t = 0; t < T; ++t) {
        const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(x.scales[t * matrix.groups + g]));
        sum[s][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(part[s][t][u]), both, sum[s][t]);
      }
    }
}

template <int S, int T>
void int8_rows(const std::uint8_t* const* strips, const MatrixLayout& matrix, const QuantizedTokens& x,
               float* c, std::size_t c_stride) {
  constexpr int P = kReadStreams<T>;
  __m512 sum[S][T];
  for (int s = 0; s < S; ++s)
    for (int t = 0; t < T; ++t) sum[s][t] = _mm512_setzero_ps();
  const int units = matrix.tiles / kGroupTiles / P;
  const ReadStreams<P> streams(strips, S, matrix, kGroupBytes, units);
  for (int g = 0; g < units; ++g)
    int8_groups<P>(strips, streams, matrix, x, {0, g, g, units, kGroupTiles}, sum);
  for (int g = P * units; g < matrix.groups; ++g) {
    const int tiles = std::min(kGroupTiles, matrix.tiles - g * kGroupTiles);
    int8_groups<1>(strips, streams, matrix, x, {P - 1, g - (P - 1) * units, g, 0, tiles}, sum);
  }
  for (int s = 0; s < S; ++s)
    for (int t = 0; t < T; ++t) _mm512_storeu_ps(c + s * c_stride + t * 16, sum[s][t]);
}

// A tile of strip `strip`: byte `at` of a read stream, tile number `tile` of the strip.
struct TilePosition {
  int strip, stream;
  std::size_t at;
  int tile;
};

// Weights stay unsigned codes (0 to 15, meaning -8 to 7); a token's 16-bit codes are multiplied as two
// bytes. Sums within a group are integers and exact.
template <int T, int P>
inline void int4_tile(const std::uint8_t* const* strips, const ReadStreams<P>& streams,
                      const MatrixLayout& matrix, const QuantizedTokens& x, const TilePosition& position,
                      __m512 (&sum)[T]) {
  const auto [s, stream, at, tile] = position;
  const __m512i nibble = _mm512_set1_epi8(15);
  const std::uint8_t* row = x.tokens + tile * x.row_bytes;
  __m512i high[T], low[T];
  for (int t = 0; t < T; ++t) {
    high[t] = _mm512_setzero_si512();
    low[t] = _mm512_set1_epi32(-8 * x.code_sums[t * matrix.groups + tile]);
  }
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    const __m512i eight = streams.load(s, stream, at + r * 64);
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
  streams.prefetch_scales(s, stream, at, 256, 32);
  const __m512 scale = scales_at(strips[s] + tile * 32);
  for (int t = 0; t < T; ++t) {
    const __m512i codes = _mm512_add_epi32(_mm512_slli_epi32(high[t], 8), low[t]);
    const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(x.scales[t * matrix.groups + tile]));
    sum[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(codes), both, sum[t]);
  }
}

template <int S, int T>
void int4_rows(const std::uint8_t* const* strips, const MatrixLayout& matrix, const QuantizedTokens& x,
               float* c, std::size_t c_stride) {
  constexpr int P = T >= 4 ? 1 : 2;  // more streams cost more instructions than they gain
  __m512 sum[S][T];
  for (int s = 0; s < S; ++s)
    for (int t = 0; t < T; ++t) sum[s][t] = _mm512_setzero_ps();
  const int units = matrix.tiles / P;
  const ReadStreams<P> streams(strips, S, matrix, 256, units);
  for (int k = 0; k < units; ++k)
#pragma GCC unroll 4
    for (int u = 0; u < P; ++u)
#pragma GCC unroll 2
      for (int s = 0; s < S; ++s)
        int4_tile(strips, streams, matrix, x, {s, u, std::size_t(k) * 256, u * units + k}, sum[s]);
  for (int k = P * units; k < matrix.tiles; ++k)
    for (int s = 0; s < S; ++s)
      int4_tile(strips, streams, matrix, x, {s, P - 1, std::size_t(k - (P - 1) * units) * 256, k}, sum[s]);
  for (int s = 0; s < S; ++s)
    for (int t = 0; t < T; ++t) _mm512_storeu_ps(c + s * c_stride + t * 16, sum[s][t]);
}

template <Dtype dtype, int S, int T>
void rows(const std::uint8_t* const* strips, const MatrixLayout& matrix, const Panel& panel, int token,
          float* c) {
  const int tile = token / kTileTokens;
  const std::uint8_t* tokens = panel.tile(tile) + token % kTileTokens * kRowBytes;
  const int stride = panel.tile_tokens(tile);
  const std::size_t c_stride = std::size_t(panel.tokens) * 16;
  const QuantizedTokens quantized{tokens, std::size_t(stride) * kRowBytes,
                                  panel.scales + token * panel.groups,
                                  panel.code_sums + token * panel.groups};
  if constexpr (dtype == Dtype::int8)
    int8_rows<S, T>(strips, matrix, quantized, c, c_stride);
  else if constexpr (dtype == Dtype::int4)
    int4_rows<S, T>(strips, matrix, quantized, c, c_stride);
  else
    bf16_rows<S, T>(strips, matrix, tokens, stride, c, c_stride);
}

template <Dtype dtype, int S>
void strips_product(const std::uint8_t* const* strips, const MatrixLayout& matrix, const Panel& panel,
                    float* c) {
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
void product(const std::uint8_t* const* strips, int count, const MatrixLayout& matrix, const Panel& panel,
             float* c, std::uint8_t*) {
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
