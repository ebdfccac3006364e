// Tile products of int8 codes. Sums of one group of inputs are integers; they leave the tiles to be
// scaled and added.
#include "products/amx_quantized.h"

#include "products/amx_tiles.h"

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

// Groups [begin, end) of strips (two or one) times all tokens, `most` tiles of them at once. A group's
// sums are added to c while the next group's are being made.
void int8_part(Shapes& shapes, const SomeStrips& some, const MatrixLayout& matrix, Fetch fetch,
               int begin, int end, const Panel& panel, int most, float* c) {
  alignas(64) std::int32_t sums[2][4 * 256];
  for (int tile = 0; tile * kTileTokens < panel.tokens; tile += most) {
    const Tokens tokens(panel, tile, most, c);
    shapes.set(tokens.rows[0], tokens.rows[1]);
    const auto flush_group = [&](int g) {
      for (int i = 0; i < 2; ++i)
        for (int s = 0; s < some.count && tokens.rows[i]; ++s)
          flush(sums[g & 1] + (2 * i + s) * 256, tokens.rows[i],
                some.at[s] - std::size_t(begin) * kGroupTiles * kTileBytes - matrix.scales_bytes + g * 32,
                panel.scales + std::size_t(tile + i) * kTileTokens * panel.groups + g, panel.groups,
                tokens.c[2 * i + s], g == 0);
    };
    for (int g = begin; g < end; ++g) {
      const int k = g * kGroupTiles, tiles = std::min(kGroupTiles, matrix.tiles - k);
      const std::size_t into = std::size_t(g - begin) * kGroupTiles * kTileBytes;
      const std::uint8_t* w[2] = {some.at[0] + into, some.at[1] + into};
      const std::uint8_t* x[2] = {tokens.x[0] + std::size_t(k) * tokens.stride[0],
                                  tokens.x[1] + std::size_t(k) * tokens.stride[1]};
      std::int32_t* const to = sums[g & 1];
      std::int32_t* const into_sums[4] = {to, to + 256, to + 512, to + 768};
      dispatch(tokens, some.count, [&]<int T, int S>() {
        zero_sums<T, S>();
        multiply<Dtype::int8, T, S, true>(w, tiles, x, tokens.stride, fetch);
        store_sums<T, S>(into_sums);
      });
      if (g > begin) flush_group(g - 1);
    }
    flush_group(end - 1);
  }
}

}  // namespace

void int8_tiles_product(const std::uint8_t* const* strips, int count, const MatrixLayout& matrix,
                        const Panel& panel, float* c, std::uint8_t*) {
  const int most = tokens_at_once(count, matrix, panel);
  const int token_tiles = divide_up(panel.tokens, kTileTokens);
  const int part = divide_up(part_tiles(matrix.tiles, panel.tokens, 1), kGroupTiles);
  Shapes shapes;
  for (int begin = 0; begin < matrix.groups; begin += part) {
    const int end = std::min(begin + part, matrix.groups);
    const std::size_t at = matrix.scales_bytes + std::size_t(begin) * kGroupTiles * kTileBytes;
    for (int s = 0; s < count; s += 2) {
      const SomeStrips some(strips, count, s, at,
                            std::size_t(part) * kGroupTiles * kTileBytes, end == matrix.groups);
      int8_part(shapes, some, matrix,
                Fetch(some.next, (end - begin) * kGroupTiles, token_tiles), begin, end, panel,
                most, c + std::size_t(s) * panel.tokens * 16);
    }
  }
}

}  // namespace moesaic
