// What the products by tiles share: how tiles are shaped, which tokens and strips a block has, what
// is fetched meanwhile. Everything is local to the file that includes it, as in elementwise.h.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <array>

#include "amx_crowded.h"
#include "kernels.h"

namespace moesaic {
namespace {

constexpr int kAhead = 4096;  // bytes to fetch ahead in a strip, while tokens are few

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

// For pairs. Tiles 0-1: the first tokens' sums, 2-3: the second tokens', 4-5: tokens, 6: weights. Two
// full ones make all eight full.
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

// What to fetch from memory while computing: so many lines of each strip with every tile. Line
// after line, which the hardware's own prefetcher recognises and then runs ahead of.
struct Fetch {
  const std::uint8_t* from[2] = {nullptr, nullptr};
  int lines = 0;

  template <int Strips>
  void step(int k) const {
    for (int s = 0; s < Strips; ++s)
      for (int line = 0; line < lines; ++line)
        _mm_prefetch((const char*)from[s] + (k * lines + line) * 64, _MM_HINT_T2);
  }
};

// A single block of tokens runs ahead in its own strips; several share the strips to come.
inline Fetch fetch_for(const std::uint8_t* const* now, const std::uint8_t* const* next, int tiles,
                       int block, int blocks) {
  Fetch fetch;
  fetch.lines = divide_up(16, blocks);
  for (int s = 0; s < 2; ++s)
    fetch.from[s] = blocks == 1 ? now[s] + kAhead : next[s] + block * tiles * fetch.lines * 64;
  return fetch;
}

// Two tiles of tokens (the second may be missing) and where their parts lie.
struct Pair {
  const std::uint8_t* x[2];
  int stride[2];
  float* c[4];
  int rows[2];

  Pair(const Panel& panel, int tile, int token_tiles, float* c_all) {
    for (int i = 0; i < 2; ++i) {
      const bool there = tile + i < token_tiles;
      rows[i] = there ? panel.tile_tokens(tile + i) : 0;
      x[i] = panel.tile(there ? tile + i : tile);
      stride[i] = rows[i] * kRowBytes;
      for (int s = 0; s < 2; ++s)
        c[2 * i + s] = c_all + (std::size_t(s) * panel.tokens + (tile + i) * kTileTokens) * 16;
    }
  }

  // Calls `block` with <tiles of tokens, whether they are equally high>.
  template <class Block>
  void dispatch(const Block& block) const {
    if (rows[1] == rows[0])
      block.template operator()<2, true>();
    else if (rows[1])
      block.template operator()<2, false>();
    else
      block.template operator()<1, true>();
  }
};

// Where a part lies in strips s and, if `most` is two and there is one, s + 1; and in those that
// follow in memory: most often what is computed next.
struct SomeStrips {
  const std::uint8_t *at[2], *next[2];
  int count;

  SomeStrips(const std::uint8_t* const* strips, int count_all, int s, int most,
             const MatrixLayout& matrix, std::size_t offset) {
    count = std::min(most, count_all - s);
    for (int i = 0; i < 2; ++i) {
      at[i] = strips[std::min(s + i, count_all - 1)] + offset;
      next[i] = at[i] + most * matrix.strip_bytes;
    }
  }
};

// How many strips a product of `count` takes at once. With few tokens memory is what is waited for.
inline int strips_at_once(int count, const MatrixLayout& matrix, const Panel& panel) {
  if (panel.tokens <= 2 * kTileTokens) return 2;
  return crowded(count * matrix.tiles * divide_up(panel.tokens, kTileTokens)) ? 1 : 2;
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
// two strips. A strip's tile meets all tokens before the next one takes its register, and where the
// tokens' tiles are equally high (`Level`) and there is one strip, they share one, too: see
// amx_crowded.h. `from` is how far into the strips this begins, for what is fetched meanwhile.
template <Dtype dtype, int Tokens, int Strips, bool Level>
inline void multiply(const std::uint8_t* const* w, int tiles, const std::uint8_t* const* x,
                     const int* x_stride, const Fetch& fetch, int from) {
#define MOESAIC_MULTIPLY(c, a, b)       \
  if constexpr (dtype == Dtype::int8)   \
    _tile_dpbssd(c, a, b);              \
  else                                  \
    _tile_dpbf16ps(c, a, b)
  for (int k = 0; k < tiles; ++k) {
    const std::size_t at = std::size_t(k) * kTileBytes;
    const std::uint8_t* first = x[0] + std::size_t(k) * x_stride[0];
    const std::uint8_t* second = x[1] + std::size_t(k) * x_stride[1];
    fetch.step<Strips>(from + k);
    _tile_loadd(6, w[0] + at, 64);
    _tile_loadd(4, first, 64);
    MOESAIC_MULTIPLY(0, 4, 6);
    if constexpr (Tokens == 2 && Strips == 1 && Level) {
      _tile_loadd(4, second, 64);
      MOESAIC_MULTIPLY(2, 4, 6);
    } else if constexpr (Tokens == 2) {
      _tile_loadd(5, second, 64);
      MOESAIC_MULTIPLY(2, 5, 6);
    }
    if constexpr (Strips == 2) {
      _tile_loadd(6, w[1] + at, 64);
      MOESAIC_MULTIPLY(1, 4, 6);
      if constexpr (Tokens == 2) {
        MOESAIC_MULTIPLY(3, 5, 6);
      }
    }
  }
#undef MOESAIC_MULTIPLY
}

}  // namespace
}  // namespace moesaic
