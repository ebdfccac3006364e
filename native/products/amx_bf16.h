// Products of bf16 tiles: of bf16 weights, and of int4 weights converted to bf16. Internal linkage.
#pragma once

#include "products/amx_tiles.h"

namespace moesaic {
namespace {

template <int Tokens, int Strips>
inline void load_sums(float* const* c, bool first) {
  if (first) return zero_sums<Tokens, Strips>();
  _tile_stream_loadd(0, c[0], 64);
  if (Strips > 1) _tile_stream_loadd(1, c[1], 64);
  if (Tokens > 1) _tile_stream_loadd(2, c[2], 64);
  if (Tokens > 1 && Strips > 1) _tile_stream_loadd(3, c[3], 64);
}

// One K block, tiles [begin, begin + tiles), of one or two strips (at `w`) times all tokens.
inline void bf16_k_block(TileConfigCache& config, const std::uint8_t* const* w, int strips,
                         StripPrefetcher prefetcher, int begin, int tiles, const PanelProduct& product) {
  const auto& [panel, at_once, c] = product;
  for (int tile = 0; tile * kTileTokens < panel.tokens; tile += at_once) {
    TokenTiles tokens(panel, tile, at_once, c);
    for (int i = 0; i < 2; ++i) tokens.x[i] += std::size_t(begin) * tokens.stride[i];
    config.set(tokens.rows[0], tokens.rows[1]);
    dispatch(tokens, strips, [&]<int T, int S>() {
      load_sums<T, S>(tokens.c, begin == 0);
      const int resident = std::min(tiles, kL1Tiles);
      multiply<Dtype::bf16, T, S, true>(w, resident, tokens.x, tokens.stride, prefetcher);
      if (tiles > resident) {
        const std::size_t at = std::size_t(resident) * kTileBytes;
        const std::uint8_t* rest[2] = {w[0] + at, w[1] + at};
        const std::uint8_t* x[2] = {tokens.x[0] + std::size_t(resident) * tokens.stride[0],
                                    tokens.x[1] + std::size_t(resident) * tokens.stride[1]};
        multiply<Dtype::bf16, T, S, false>(rest, tiles - resident, x, tokens.stride, prefetcher);
      }
      store_sums<T, S>(tokens.c);
    });
  }
}

}  // namespace
}  // namespace moesaic
