// Products of bf16 tiles, of weights that are bf16 or have become so. Local to the file that includes it.
#pragma once

#include "products/amx_tiles.h"

namespace moesaic {
namespace {

template <int Tokens, int Strips>
inline void begin_sums(float* const* c, bool first) {
  if (first) return zero_sums<Tokens, Strips>();
  _tile_stream_loadd(0, c[0], 64);
  if (Strips > 1) _tile_stream_loadd(1, c[1], 64);
  if (Tokens > 1) _tile_stream_loadd(2, c[2], 64);
  if (Tokens > 1 && Strips > 1) _tile_stream_loadd(3, c[3], 64);
}

// Tiles [begin, begin + tiles) of one or two strips, which lie at w, times all tokens, `most` tiles of
// them at once.
inline void bf16_part(Shapes& shapes, const std::uint8_t* const* w, int strips, Fetch fetch, int begin,
                      int tiles, const Panel& panel, int most, float* c) {
  for (int tile = 0; tile * kTileTokens < panel.tokens; tile += most) {
    Tokens tokens(panel, tile, most, c);
    for (int i = 0; i < 2; ++i) tokens.x[i] += std::size_t(begin) * tokens.stride[i];
    shapes.set(tokens.rows[0], tokens.rows[1]);
    dispatch(tokens, strips, [&]<int T, int S>() {
      begin_sums<T, S>(tokens.c, begin == 0);
      const int near = std::min(tiles, kNearTiles);
      multiply<Dtype::bf16, T, S, true>(w, near, tokens.x, tokens.stride, fetch);
      if (tiles > near) {
        const std::size_t at = std::size_t(near) * kTileBytes;
        const std::uint8_t* far[2] = {w[0] + at, w[1] + at};
        const std::uint8_t* x[2] = {tokens.x[0] + std::size_t(near) * tokens.stride[0],
                                    tokens.x[1] + std::size_t(near) * tokens.stride[1]};
        multiply<Dtype::bf16, T, S, false>(far, tiles - near, x, tokens.stride, fetch);
      }
      store_sums<T, S>(tokens.c);
    });
  }
}

}  // namespace
}  // namespace moesaic
