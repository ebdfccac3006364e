// Products of int8 codes in AMX tiles. The sums of a group of inputs are integers; they are stored after
// every group, scaled and added in fp32.
#include "products/amx_quantized.h"

#include "products/amx_tiles.h"

namespace moesaic {
namespace {

constexpr int kGroupTiles = format_of(Dtype::int8).group / 64;

// Adds a tile of integer sums, times both scales, to c.
template <int Rows>
inline void add_scaled_rows(const std::int32_t* sums, int rows, __m512 scale, const float* token_scales,
                            int groups, float* c, bool first) {
  const int count = Rows ? Rows : rows;
#pragma GCC unroll 16
  for (int r = 0; r < count; ++r) {
    const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(token_scales[std::size_t(r) * groups]));
    const __m512 part = _mm512_cvtepi32_ps(_mm512_load_si512(sums + r * 16));
    const __m512 sum =
        first ? _mm512_mul_ps(part, both) : _mm512_fmadd_ps(part, both, _mm512_loadu_ps(c + r * 16));
    _mm512_storeu_ps(c + r * 16, sum);
  }
}

inline void add_scaled(const std::int32_t* sums, int rows, const std::uint8_t* weight_scales,
                       const float* token_scales, int groups, float* c, bool first) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)weight_scales));
  const __m512 scale = _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  if (rows == 16)
    add_scaled_rows<16>(sums, rows, scale, token_scales, groups, c, first);
  else
    add_scaled_rows<0>(sums, rows, scale, token_scales, groups, c, first);
}

// One K block, groups [begin, end), of one or two strips times all tokens. A group's sums are added to c
// while the next group is being multiplied.
void int8_k_block(TileConfigCache& config, const StripPair& pair, const MatrixLayout& matrix,
                  StripPrefetcher prefetcher, int begin, int end, const PanelProduct& product) {
  const auto& [panel, at_once, c] = product;
  alignas(64) std::int32_t sums[2][4 * 256];
  for (int tile = 0; tile * kTileTokens < panel.tokens; tile += at_once) {
    const TokenTiles tokens(panel, tile, at_once, c);
    config.set(tokens.rows[0], tokens.rows[1]);
    const auto add_group = [&](int g) {
      for (int i = 0; i < 2; ++i)
        for (int s = 0; s < pair.count && tokens.rows[i]; ++s)
          add_scaled(
              sums[g & 1] + (2 * i + s) * 256, tokens.rows[i],
              pair.at[s] - std::size_t(begin) * kGroupTiles * kTileBytes - matrix.scales_bytes + g * 32,
              panel.scales + std::size_t(tile + i) * kTileTokens * panel.groups + g, panel.groups,
              tokens.c[2 * i + s], g == 0);
    };
    for (int g = begin; g < end; ++g) {
      const int k = g * kGroupTiles, tiles = std::min(kGroupTiles, matrix.tiles - k);
      const std::size_t into = std::size_t(g - begin) * kGroupTiles * kTileBytes;
      const std::uint8_t* w[2] = {pair.at[0] + into, pair.at[1] + into};
      const std::uint8_t* x[2] = {tokens.x[0] + std::size_t(k) * tokens.stride[0],
                                  tokens.x[1] + std::size_t(k) * tokens.stride[1]};
      std::int32_t* const to = sums[g & 1];
      std::int32_t* const into_sums[4] = {to, to + 256, to + 512, to + 768};
      dispatch(tokens, pair.count, [&]<int T, int S>() {
        zero_sums<T, S>();
        multiply<Dtype::int8, T, S, true>(w, tiles, x, tokens.stride, prefetcher);
        store_sums<T, S>(into_sums);
      });
      if (g > begin) add_group(g - 1);
    }
    add_group(end - 1);
  }
}

}  // namespace

void int8_tiles_product(const std::uint8_t* const* strips, int count, const MatrixLayout& matrix,
                        const Panel& panel, float* c, std::uint8_t*) {
  const int at_once = token_tiles_at_once(count, matrix, panel);
  const int token_tiles = divide_up(panel.tokens, kTileTokens);
  const int block = divide_up(k_block_tiles(matrix.tiles, panel.tokens, 1), kGroupTiles);
  TileConfigCache config;
  for (int begin = 0; begin < matrix.groups; begin += block) {
    const int end = std::min(begin + block, matrix.groups);
    const std::size_t at = matrix.scales_bytes + std::size_t(begin) * kGroupTiles * kTileBytes;
    for (int s = 0; s < count; s += 2) {
      const StripPair pair(strips, count, s, at, std::size_t(block) * kGroupTiles * kTileBytes,
                           end == matrix.groups);
      int8_k_block(config, pair, matrix, StripPrefetcher(pair.next, (end - begin) * kGroupTiles, token_tiles),
                   begin, end, {panel, at_once, c + std::size_t(s) * panel.tokens * 16});
    }
  }
}

}  // namespace moesaic
