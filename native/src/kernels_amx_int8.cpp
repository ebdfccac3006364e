// Tile products of int8 codes, in the blocks that kernels_amx.cpp explains. Sums of one group of
// inputs are integers; they leave the tiles to be scaled and added.
#include "kernels_amx_int8.h"

#include "amx_tiles.h"

namespace moesaic {
namespace {

constexpr int kGroupTiles = format_of(Dtype::int8).group / 64;

// Adds a tile of integer sums, times both scales, to c.
template <int Rows>
inline void flush_rows(const std::int32_t* sums, int rows, __m512 scale, const float* token_scales,
                       int groups, float* c, bool first) {
  const int count = Rows ? Rows : rows;
#pragma GCC unroll 16
  for (int r = 0; r < count; ++r) {
    const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(token_scales[std::size_t(r) * groups]));
    const __m512 part = _mm512_cvtepi32_ps(_mm512_load_si512(sums + r * 16));
    const __m512 sum = first ? _mm512_mul_ps(part, both)
                             : _mm512_fmadd_ps(part, both, _mm512_loadu_ps(c + r * 16));
    _mm512_storeu_ps(c + r * 16, sum);
  }
}

inline void flush(const std::int32_t* sums, int rows, const std::uint8_t* weight_scales,
                  const float* token_scales, int groups, float* c, bool first) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)weight_scales));
  const __m512 scale = _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  if (rows == 16)
    flush_rows<16>(sums, rows, scale, token_scales, groups, c, first);
  else
    flush_rows<0>(sums, rows, scale, token_scales, groups, c, first);
}

// Groups [begin, end) of strips (two or one) times all tokens. A group's sums are added to c while
// the next group's are being made.
template <int Strips>
void int8_block(Shapes& shapes, const SomeStrips& some, const MatrixLayout& matrix, int begin,
                int end, const Panel& panel, float* c) {
  alignas(64) std::int32_t sums[2][4 * 256];
  const int token_tiles = divide_up(panel.tokens, kTileTokens);
  const int pairs = divide_up(token_tiles, 2);
  const std::size_t at = matrix.scales_bytes + std::size_t(begin) * kGroupTiles * kTileBytes;
  const std::uint8_t* now[2] = {some.at[0] + at, some.at[1] + at};
  const std::uint8_t* next[2] = {some.next[0] + at, some.next[1] + at};
  for (int p = 0; p < pairs; ++p) {
    const Pair pair(panel, 2 * p, token_tiles, c);
    const Fetch fetch = fetch_for(now, next, (end - begin) * kGroupTiles, p, pairs);
    shapes.set(pair.rows[0], pair.rows[1]);
    const auto flush_group = [&](int g) {
      for (int i = 0; i < 2; ++i)
        for (int s = 0; s < Strips && pair.rows[i]; ++s)
          flush(sums[g & 1] + (2 * i + s) * 256, pair.rows[i], some.at[s] + g * 32,
                panel.scales + std::size_t(2 * p + i) * kTileTokens * panel.groups + g,
                panel.groups, pair.c[2 * i + s], g == 0);
    };
    for (int g = begin; g < end; ++g) {
      const int k = g * kGroupTiles, tiles = std::min(kGroupTiles, matrix.tiles - k);
      const int into = (g - begin) * kGroupTiles;
      const std::uint8_t* w[2] = {now[0] + into * kTileBytes, now[1] + into * kTileBytes};
      const std::uint8_t* x[2] = {pair.x[0] + std::size_t(k) * pair.stride[0],
                                  pair.x[1] + std::size_t(k) * pair.stride[1]};
      std::int32_t* const to = sums[g & 1];
      std::int32_t* const into_sums[4] = {to, to + 256, to + 512, to + 768};
      pair.dispatch([&]<int Tokens, bool Level>() {
        zero_sums<Tokens, Strips>();
        multiply<Dtype::int8, Tokens, Strips, Level>(w, tiles, x, pair.stride, fetch, into);
        store_sums<Tokens, Strips>(into_sums);
      });
      if (g > begin) flush_group(g - 1);
    }
    flush_group(end - 1);
  }
}

}  // namespace

void int8_tiles_product(const std::uint8_t* const* strips, int count, const MatrixLayout& matrix,
                        const Panel& panel, float* c, std::uint8_t*) {
  const int most = strips_at_once(count, matrix, panel);
  Shapes shapes;
  const int block = block_tiles(matrix.tiles) / kGroupTiles;
  for (int begin = 0; begin < matrix.groups; begin += block) {
    const int end = std::min(begin + block, matrix.groups);
    for (int s = 0; s < count; s += most) {
      const SomeStrips some(strips, count, s, most, matrix, 0);
      float* to = c + std::size_t(s) * panel.tokens * 16;
      if (some.count == 2)
        int8_block<2>(shapes, some, matrix, begin, end, panel, to);
      else
        int8_block<1>(shapes, some, matrix, begin, end, panel, to);
    }
  }
}

}  // namespace moesaic
