// What the AMX products have in common: tile configuration, the tokens and strips of one register block,
// prefetching of the next strips, the inner loop. Internal linkage, as in elementwise.h.
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
  // GCC's intrinsic declares a read of eight bytes only: keep the other stores from being dropped.
  __asm__ volatile("" : : "m"(config) : "memory");
  _tile_loadconfig(&config);
}

// Configures tiles when the number of tokens changes. Tiles 0-1: sums of the first token tile, 2-3: of the
// second, 4-5: tokens, 6-7: weights.
class TileConfigCache {
 public:
  void set(int first, int second) {
    if (first == first_ && second == second_) return;
    first_ = first, second_ = second;
    configure({first, first, second, second, first, second, 16, 16});
  }

 private:
  int first_ = -1, second_ = -1;
};

// L1-resident tiles: so many tiles of each of two strips (32 KB) stay in the L1 cache while all token tiles
// are multiplied with them.
constexpr int kL1Tiles = 16;
constexpr int kPrefetchTiles = 64;  // of each of two strips, prefetched in the memory-bound case

// Length of a K block (tiles of inputs between loading and storing the sums), with `token_tiles` token tiles
// at once. Memory bound: as many as can be prefetched without filling a cache, so that sums stay in their
// registers. With one token tile (an active SMT sibling): the L1-resident tiles. With two: twice as many, the
// second half of the weights from L2 (bf16), so that sums are stored and loaded half as often.
inline int k_block_tiles(int tiles, int tokens, int token_tiles) {
  const int wanted = tokens <= kMemoryBoundTokens ? kPrefetchTiles : token_tiles * kL1Tiles;
  return divide_up(tiles, divide_up(tiles, wanted));
}

// Prefetches the next strips into L2 while two strips are multiplied, one line or a few with every product:
// in two read streams per strip (memory bound: in four), sequentially within a stream, so that the hardware
// prefetcher recognises the streams and runs ahead of them.
class StripPrefetcher {
 public:
  StripPrefetcher() = default;
  StripPrefetcher(const std::uint8_t* const* next, int tiles, int token_tiles)
      : next_{next[0], next[1]},
        lines_(divide_up(16, token_tiles)),
        log_streams_(token_tiles * kTileTokens > kMemoryBoundTokens ? 1 : 2),
        stream_bytes_(std::size_t(tiles) * kTileBytes >> log_streams_) {}

  template <int Strips>
  void prefetch_lines() {
    for (int i = 0; i < lines_; ++i, ++done_) {
      const std::size_t line = done_ / Strips, stream = line & ((1u << log_streams_) - 1);
      const std::size_t at = stream * stream_bytes_ + (line >> log_streams_) * 64;
      _mm_prefetch((const char*)next_[done_ % Strips] + at, _MM_HINT_T1);
    }
  }

 private:
  const std::uint8_t* next_[2] = {nullptr, nullptr};
  int lines_ = 0, log_streams_ = 0;
  std::size_t stream_bytes_ = 0, done_ = 0;
};

// One or two token tiles of a panel, and where their sums are.
struct TokenTiles {
  const std::uint8_t* x[2];
  int stride[2];
  float* c[4];
  int rows[2];

  TokenTiles(const Panel& panel, int tile, int at_once, float* c_all) {
    const int token_tiles = divide_up(panel.tokens, kTileTokens);
    for (int i = 0; i < 2; ++i) {
      const bool there = i < at_once && tile + i < token_tiles;
      rows[i] = there ? panel.tile_tokens(tile + i) : 0;
      x[i] = panel.tile(there ? tile + i : tile);
      stride[i] = rows[i] * kRowBytes;
      for (int s = 0; s < 2; ++s)
        c[2 * i + s] = c_all + (std::size_t(s) * panel.tokens + (tile + i) * kTileTokens) * 16;
    }
  }
};

// A K block of two strips (or of the last one), from byte `begin` on, and what is read after it: the same
// block of the next two strips, or the next block of the first two, or (`last` block) what the caller reads
// next.
struct StripPair {
  const std::uint8_t *at[2], *next[2];
  int count;

  StripPair(const std::uint8_t* const* strips, int all, int s, std::size_t begin, std::size_t bytes,
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

// A product's tokens and sums: all tokens of the panel, `at_once` token tiles at a time.
struct PanelProduct {
  const Panel& panel;
  int at_once;
  float* c;  // [strip][token][16]
};

// Token tiles that are multiplied at once: one or two.
inline int token_tiles_at_once(int count, const MatrixLayout& matrix, const Panel& panel) {
  const int token_tiles = divide_up(panel.tokens, kTileTokens);
  if (token_tiles == 1) return 1;
  return smt_sibling_active(count * matrix.tiles * token_tiles) ? 1 : 2;
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

// Adds `tiles` tiles of inputs to the sums in tiles 0 to 3: one or two token tiles times one or two strips.
// Tokens come from L2 by a load that does not allocate in L1 (TILELOADDT1); so do weights, unless they are
// `L1Resident`. A single token tile uses four tile registers: see amx_smt_sibling.h.
template <Dtype dtype, int Tokens, int Strips, bool L1Resident>
inline void multiply(const std::uint8_t* const* w, int tiles, const std::uint8_t* const* x,
                     const int* x_stride, StripPrefetcher& prefetcher) {
#define MOESAIC_LOAD(tile, from) \
  if constexpr (L1Resident)      \
    _tile_loadd(tile, from, 64); \
  else                           \
    _tile_stream_loadd(tile, from, 64)
#define MOESAIC_MULTIPLY(c, a, b)      \
  prefetcher.prefetch_lines<Strips>(); \
  if constexpr (dtype == Dtype::int8)  \
    _tile_dpbssd(c, a, b);             \
  else                                 \
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

// Calls `block` with <token tiles, strips>.
template <class Block>
inline void dispatch(const TokenTiles& tokens, int strips, const Block& block) {
  if (tokens.rows[1])
    strips == 2 ? block.template operator()<2, 2>() : block.template operator()<2, 1>();
  else
    strips == 2 ? block.template operator()<1, 2>() : block.template operator()<1, 1>();
}

}  // namespace
}  // namespace moesaic
