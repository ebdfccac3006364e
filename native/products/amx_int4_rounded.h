// The previous product of int4 weights with more than one token tile, kept until the present one has been
// measured: weights are rounded to nearest, 16 tiles at a time, and only prefetched within their strip.
#pragma once

#include "products/amx_int4.h"

namespace moesaic {
namespace {

// int4 codes times scales, rounded to bf16, as one tile of bf16 weights.
inline void unpack_rounded(const std::uint8_t* codes, __m512 scale, __m512i table, std::uint8_t* to) {
  const __m512i half = _mm512_set1_epi32(0x8000), high = _mm512_set1_epi32(int(0xffff0000u));
  for (int r = 0; r < 4; ++r) {
    const __m512i eight = _mm512_loadu_si512(codes + r * 64);
    _mm_prefetch((const char*)codes + r * 64 + kPrefetchBytes, _MM_HINT_T0);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m512i pair = _mm512_permutexvar_epi16(j ? _mm512_srli_epi16(eight, 4 * j) : eight, table);
      const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
      const __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(pair, high));
      const __m512i e = _mm512_add_epi32(_mm512_castps_si512(_mm512_mul_ps(even, scale)), half);
      const __m512i o = _mm512_add_epi32(_mm512_castps_si512(_mm512_mul_ps(odd, scale)), half);
      const __m512i joined = _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(e, 16), o);
      _mm512_storeu_si512(to + (4 * r + j) * 64, joined);
    }
  }
}

void scale_weights_rounded(const std::uint8_t* const* strips, int count, const MatrixLayout& matrix,
                   const Panel& panel, float* c, std::uint8_t* scratch) {
  static_assert(2 * kL1Tiles * kTileBytes <= kScratchBytes);
  const int at_once = token_tiles_at_once(count, matrix, panel);
  TileConfigCache config;
  const __m512i table = int4_table();
  const std::uint8_t* const w[2] = {scratch, scratch + kL1Tiles * kTileBytes};
  for (int begin = 0; begin < matrix.tiles; begin += kL1Tiles) {
    const int tiles = std::min(kL1Tiles, matrix.tiles - begin);
    for (int s = 0; s < count; s += 2) {
      const int pair = std::min(2, count - s);
      for (int i = 0; i < pair; ++i)
        for (int k = 0; k < tiles; ++k)
          unpack_rounded(strips[s + i] + matrix.scales_bytes + std::size_t(begin + k) * 256,
                        scale_at(strips[s + i], begin + k), table,
                        scratch + (std::size_t(i) * kL1Tiles + k) * kTileBytes);
      __asm__ volatile("" : : : "memory");  // GCC's tile loads do not declare that they read memory
      bf16_k_block(config, w, pair, StripPrefetcher(), begin, tiles,
                   {panel, at_once, c + std::size_t(s) * panel.tokens * 16});
    }
  }
}

}  // namespace
}  // namespace moesaic
