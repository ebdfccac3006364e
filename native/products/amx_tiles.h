// What the products by tiles share: how tiles are shaped, which tokens and strips a block has, what
// is fetched meanwhile. Everything is local to the file that includes it, as in elementwise.h.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <array>

#include "products/amx_smt_sibling.h"
#include "products/kernels.h"

namespace moesaic {
namespace {

struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

inline void configure(const std::array<int, 8>& rows) {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.rows[i] = std::uint8_t(std::max(rows[i], 1));
    config.row_bytes[i] = 64;
  }
  // GCC's intrinsic says that it reads eight bytes; without this the others need not be there.
  __asm__ volatile("" : : "m"(config) : "memory");
  _tile_loadconfig(&config);
}

// Tiles 0-1: the first tokens' sums, 2-3: the second tokens', 4-5: tokens, 6-7: weights.
class Shapes {
 public:
  void set(int first, int second) {
    if (first == first_ && second == second_) return;
    first_ = first, second_ = second;
    configure({first, first, second, second, first, second, 16, 16});
  }

 private:
  int first_ = -1, second_ = -1;
};

// Of two strips, so many tiles stay in the first-level cache while token after token meets them.
constexpr int kNearTiles = 16;
constexpr int kFetchedTiles = 64;  // of each of two strips, ahead of few tokens

// Tiles of inputs that a product takes at a time, with `most` tiles of tokens at once. Where tokens are
// few, as many as may be fetched ahead without filling a cache: sums had better stay in their tiles. Beside
// another thread, what stays near. Alone, the second-level cache has time for as much again (of bf16), and
// sums come and go half as often.
inline int part_tiles(int tiles, int tokens, int most) {
  const int wanted = tokens <= kManyTokens ? kFetchedTiles : most * kNearTiles;
  return divide_up(tiles, divide_up(tiles, wanted));
}

// What to fetch from memory while two strips are multiplied: those that are read next, a line or a few with
// every product. In several places of each strip in turn (few tokens, who wait for memory: in four), line
// after line there, which the hardware's own prefetcher recognises and then runs ahead of.
class Fetch {
 public:
  Fetch() = default;
  Fetch(const std::uint8_t* const* next, int tiles, int token_tiles)
      : next_{next[0], next[1]},
        lines_(divide_up(16, token_tiles)),
        log_places_(token_tiles * kTileTokens > kManyTokens ? 1 : 2),
        place_(std::size_t(tiles) * kTileBytes >> log_places_) {}

  template <int Strips>
  void some() {
    for (int i = 0; i < lines_; ++i, ++done_) {
      const std::size_t line = done_ / Strips, place = line & ((1u << log_places_) - 1);
      const std::size_t at = place * place_ + (line >> log_places_) * 64;
      _mm_prefetch((const char*)next_[done_ % Strips] + at, _MM_HINT_T1);
    }
  }

 private:
  const std::uint8_t* next_[2] = {nullptr, nullptr};
  int lines_ = 0, log_places_ = 0;
  std::size_t place_ = 0, done_ = 0;
};

// One or two tiles of tokens and where their parts lie.
struct Tokens {
  const std::uint8_t* x[2];
  int stride[2];
  float* c[4];
  int rows[2];

  Tokens(const Panel& panel, int tile, int most, float* c_all) {
    const int token_tiles = divide_up(panel.tokens, kTileTokens);
    for (int i = 0; i < 2; ++i) {
      const bool there = i < most && tile + i < token_tiles;
      rows[i] = there ? panel.tile_tokens(tile + i) : 0;
      x[i] = panel.tile(there ? tile + i : tile);
      stride[i] = rows[i] * kRowBytes;
      for (int s = 0; s < 2; ++s)
        c[2 * i + s] = c_all + (std::size_t(s) * panel.tokens + (tile + i) * kTileTokens) * 16;
    }
  }
};

// Two strips, or the last one, from tile `begin` on, and what is read after them: the same part of the
// next two, the next part of the first two, what the caller reads next.
struct SomeStrips {
  const std::uint8_t *at[2], *next[2];
  int count;

  SomeStrips(const std::uint8_t* const* strips, int all, int s, std::size_t begin, std::size_t bytes,
             bool last) {
    count = std::min(2, all - s);
    for (int i = 0; i < 2; ++i) {
      const std::uint8_t* strip = strips[std::min(s + i, all - 1)];
      at[i] = strip + begin;
      if (s + 2 < all)
        next[i] = strips[std::min(s + 2 + i, all - 1)] + begin;
      else if (!last)
        next[i] = strips[std::min(i, all - 1)] + begin + bytes;
      else
        next[i] = strips[all + i];
    }
  }
};

// How many tiles of tokens a product takes at once.
inline int tokens_at_once(int count, const MatrixLayout& matrix, const Panel& panel) {
  const int token_tiles = divide_up(panel.tokens, kTileTokens);
  if (token_tiles == 1) return 1;
  return crowded(count * matrix.tiles * token_tiles) ? 1 : 2;
}

template <int Tokens, int Strips>
inline void zero_sums() {
  _tile_zero(0);
  if (Strips > 1) _tile_zero(1);
  if (Tokens > 1) _tile_zero(2);
  if (Tokens > 1 && Strips > 1) _tile_zero(3);
}

template <int Tokens, int Strips, class Sum>
inline void store_sums(Sum* const* c) {
  _tile_stored(0, c[0], 64);
  if (Strips > 1) _tile_stored(1, c[1], 64);
  if (Tokens > 1) _tile_stored(2, c[2], 64);
  if (Tokens > 1 && Strips > 1) _tile_stored(3, c[3], 64);
}

// Adds `tiles` tiles of inputs to the sums in tiles 0 to 3: one or two tiles of tokens times one or
// two strips. Tokens come from the second-level cache by a load that leaves the first alone, and so do
// weights, unless they are to stay there (`Near`). A single tile of tokens uses four registers: see
// amx_crowded.h.
template <Dtype dtype, int Tokens, int Strips, bool Near>
inline void multiply(const std::uint8_t* const* w, int tiles, const std::uint8_t* const* x,
                     const int* x_stride, Fetch& fetch) {
#define MOESAIC_LOAD(tile, from)         \
  if constexpr (Near)                    \
    _tile_loadd(tile, from, 64);         \
  else                                   \
    _tile_stream_loadd(tile, from, 64)
#define MOESAIC_MULTIPLY(c, a, b)       \
  fetch.some<Strips>();                 \
  if constexpr (dtype == Dtype::int8)   \
    _tile_dpbssd(c, a, b);              \
  else                                  \
    _tile_dpbf16ps(c, a, b)
  for (int k = 0; k < tiles; ++k) {
    const std::size_t at = std::size_t(k) * kTileBytes;
    _tile_stream_loadd(4, x[0] + std::size_t(k) * x_stride[0], 64);
    MOESAIC_LOAD(6, w[0] + at);
    MOESAIC_MULTIPLY(0, 4, 6);
    if constexpr (Tokens == 1 && Strips == 2) {
      MOESAIC_LOAD(6, w[1] + at);
      MOESAIC_MULTIPLY(1, 4, 6);
    }
    if constexpr (Tokens == 2) {
      if constexpr (Strips == 2) {
        MOESAIC_LOAD(7, w[1] + at);
        MOESAIC_MULTIPLY(1, 4, 7);
      }
      _tile_stream_loadd(5, x[1] + std::size_t(k) * x_stride[1], 64);
      MOESAIC_MULTIPLY(2, 5, 6);
      if constexpr (Strips == 2) {
        MOESAIC_MULTIPLY(3, 5, 7);
      }
    }
  }
#undef MOESAIC_LOAD
#undef MOESAIC_MULTIPLY
}

// Calls `block` with <tiles of tokens, strips>.
template <class Block>
inline void dispatch(const Tokens& tokens, int strips, const Block& block) {
  if (tokens.rows[1])
    strips == 2 ? block.template operator()<2, 2>() : block.template operator()<2, 1>();
  else
    strips == 2 ? block.template operator()<1, 2>() : block.template operator()<1, 1>();
}

}  // namespace
}  // namespace moesaic
