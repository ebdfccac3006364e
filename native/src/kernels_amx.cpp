// Tile products for CPUs with AMX: two tiles of tokens times two strips at once, so that every
// loaded tile is used twice. Sums stay in tiles over 2048 inputs (all of them, for most experts):
// taking fewer at a time keeps weights in the first-level cache, and loses more to sums that come
// and go. Meanwhile the next two strips' weights are fetched from memory.
#include <immintrin.h>

#include <algorithm>
#include <array>

#include <cstring>

#include "ceilings.h"
#include "kernels.h"

namespace moesaic {
namespace {

constexpr int kUnpackTiles = 32;  // int4: two strips' unpacked tiles, at most
constexpr int kGroupTiles = format_of(Dtype::int8).group / 64;
// A block: 256 tokens' inputs of it take half of the L2 cache.
constexpr int kBlockGroups = kBlockTiles / kGroupTiles;  // int8
constexpr int kAhead = 4096;      // bytes to fetch ahead in a strip, while tokens are few

struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

// Tiles 0-1: the first tokens' sums, 2-3: the second tokens', 4-5: tokens, 6-7: weights.
class Shapes {
 public:
  void set(int first, int second) {
    if (first == first_ && second == second_) return;
    first_ = first, second_ = second;
    TileConfig config;
    const int rows[8] = {first, first, second, second, first, second, 16, 16};
    for (int i = 0; i < 8; ++i) {
      config.rows[i] = std::uint8_t(std::max(rows[i], 1));
      config.row_bytes[i] = 64;
    }
    // GCC's intrinsic says that it reads eight bytes; without this the others need not be there.
    __asm__ volatile("" : : "m"(config) : "memory");
    _tile_loadconfig(&config);
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

// A single pair of token tiles runs ahead in its own strips; several share the strips to come.
inline Fetch fetch_for(const std::uint8_t* const* now, const std::uint8_t* const* next, int tiles,
                       int pair, int pairs) {
  Fetch fetch;
  fetch.lines = divide_up(16, pairs);
  for (int s = 0; s < 2; ++s)
    fetch.from[s] = pairs == 1 ? now[s] + kAhead : next[s] + pair * tiles * fetch.lines * 64;
  return fetch;
}

// Sums of one pair of token tiles over `tiles` tiles of weights, which lie at w[0] and w[1].
template <int Tokens, int Strips>
inline void bf16_pair(const std::uint8_t* const* w, int tiles, const std::uint8_t* const* x,
                      const int* x_stride, float* const* c, bool first, const Fetch& fetch) {
  if (first) {
    _tile_zero(0);
    if (Strips > 1) _tile_zero(1);
    if (Tokens > 1) _tile_zero(2);
    if (Tokens > 1 && Strips > 1) _tile_zero(3);
  } else {
    _tile_loadd(0, c[0], 64);
    if (Strips > 1) _tile_loadd(1, c[1], 64);
    if (Tokens > 1) _tile_loadd(2, c[2], 64);
    if (Tokens > 1 && Strips > 1) _tile_loadd(3, c[3], 64);
  }
  for (int k = 0; k < tiles; ++k) {
    const std::size_t at = std::size_t(k) * kTileBytes;
    fetch.step<Strips>(k);
    _tile_loadd(4, x[0] + std::size_t(k) * x_stride[0], 64);
    _tile_loadd(6, w[0] + at, 64);
    _tile_dpbf16ps(0, 4, 6);
    if (Strips > 1) {
      _tile_loadd(7, w[1] + at, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (Tokens > 1) {
      _tile_loadd(5, x[1] + std::size_t(k) * x_stride[1], 64);
      _tile_dpbf16ps(2, 5, 6);
      if (Strips > 1) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c[0], 64);
  if (Strips > 1) _tile_stored(1, c[1], 64);
  if (Tokens > 1) _tile_stored(2, c[2], 64);
  if (Tokens > 1 && Strips > 1) _tile_stored(3, c[3], 64);
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
};

// Tiles [begin, begin + tiles) of two strips (or one) times all tokens.
template <int Strips>
void bf16_block(Shapes& shapes, const std::uint8_t* const* w, const std::uint8_t* const* next,
                int begin, int tiles, const Panel& panel, float* c) {
  const int token_tiles = divide_up(panel.tokens, kTileTokens);
  const int pairs = divide_up(token_tiles, 2);
  for (int p = 0; p < pairs; ++p) {
    Pair pair(panel, 2 * p, token_tiles, c);
    for (int i = 0; i < 2; ++i) pair.x[i] += std::size_t(begin) * pair.stride[i];
    shapes.set(pair.rows[0], pair.rows[1]);
    const Fetch fetch = next ? fetch_for(w, next, tiles, p, pairs) : Fetch();
    if (pair.rows[1])
      bf16_pair<2, Strips>(w, tiles, pair.x, pair.stride, pair.c, begin == 0, fetch);
    else
      bf16_pair<1, Strips>(w, tiles, pair.x, pair.stride, pair.c, begin == 0, fetch);
  }
}

void bf16_any(Shapes& shapes, int strips, const std::uint8_t* const* w,
              const std::uint8_t* const* next, int begin, int tiles, const Panel& panel, float* c) {
  if (strips == 2)
    bf16_block<2>(shapes, w, next, begin, tiles, panel, c);
  else
    bf16_block<1>(shapes, w, next, begin, tiles, panel, c);
}

// Where the block lies in strips s and s + 1. The last strips fetch what follows them in memory:
// most often what is computed next.
struct TwoStrips {
  const std::uint8_t* at[2];
  int count;

  TwoStrips(const std::uint8_t* const* strips, int count_all, int s, std::size_t offset) {
    count = std::min(2, count_all - s);
    for (int i = 0; i < 2; ++i) {
      const int last = count_all - 1;
      const std::uint8_t* strip = strips[std::min(s + i, last)];
      at[i] = strip + offset;
    }
  }
};

void bf16_product(const std::uint8_t* const* strips, int count, const MatrixLayout& matrix,
                  const Panel& panel, float* c, std::uint8_t*) {
  Shapes shapes;
  for (int begin = 0; begin < matrix.tiles; begin += kBlockTiles) {
    const int tiles = std::min(kBlockTiles, matrix.tiles - begin);
    const std::size_t at = std::size_t(begin) * kTileBytes;
    for (int s = 0; s < count; s += 2) {
      const TwoStrips now(strips, count, s, at);
      const std::uint8_t* next[2] = {now.at[0] + 2 * matrix.strip_bytes,
                                     now.at[1] + 2 * matrix.strip_bytes};
      bf16_any(shapes, now.count, now.at, next, begin, tiles, panel,
               c + std::size_t(s) * panel.tokens * 16);
    }
  }
}

// int4 codes times scales, rounded to bf16, as one tile of bf16 weights.
inline void unpack_int4_tile(const std::uint8_t* codes, const std::uint8_t* scales, __m512i table,
                             std::uint8_t* to) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)scales));
  const __m512 scale = _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  const __m512i half = _mm512_set1_epi32(0x8000), high = _mm512_set1_epi32(int(0xffff0000u));
  for (int r = 0; r < 4; ++r) {
    const __m512i eight = _mm512_loadu_si512(codes + r * 64);
    _mm_prefetch((const char*)codes + r * 64 + kAhead, _MM_HINT_T0);
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

inline __m512i int4_table() {
  alignas(64) std::uint16_t table[32];
  for (int i = 0; i < 32; ++i) {
    const float value = float(i % 16 - 8);
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    table[i] = std::uint16_t(bits >> 16);
  }
  return _mm512_load_si512(table);
}

void int4_product(const std::uint8_t* const* strips, int count, const MatrixLayout& matrix,
                  const Panel& panel, float* c, std::uint8_t* scratch) {
  static_assert(2 * kUnpackTiles * kTileBytes <= kScratchBytes);
  Shapes shapes;
  const __m512i table = int4_table();
  for (int begin = 0; begin < matrix.tiles; begin += kUnpackTiles) {
    const int tiles = std::min(kUnpackTiles, matrix.tiles - begin);
    for (int s = 0; s < count; s += 2) {
      const TwoStrips now(strips, count, s, 0);
      const std::uint8_t* w[2] = {scratch, scratch + kUnpackTiles * kTileBytes};
      for (int i = 0; i < now.count; ++i)
        for (int k = 0; k < tiles; ++k)
          unpack_int4_tile(now.at[i] + matrix.scales_bytes + std::size_t(begin + k) * 256,
                           now.at[i] + std::size_t(begin + k) * 32, table,
                           scratch + (std::size_t(i) * kUnpackTiles + k) * kTileBytes);
      __asm__ volatile("" : : : "memory");  // GCC's tile loads do not say that they read memory
      bf16_any(shapes, now.count, w, nullptr, begin, tiles, panel,
               c + std::size_t(s) * panel.tokens * 16);
    }
  }
}

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

template <int Tokens, int Strips>
inline void int8_group(const std::uint8_t* const* w, int tiles, const std::uint8_t* const* x,
                       const int* x_stride, std::int32_t* sums, const Fetch& fetch, int at_tile) {
  _tile_zero(0);
  if (Strips > 1) _tile_zero(1);
  if (Tokens > 1) _tile_zero(2);
  if (Tokens > 1 && Strips > 1) _tile_zero(3);
  for (int k = 0; k < tiles; ++k) {
    const std::size_t at = std::size_t(k) * kTileBytes;
    fetch.step<Strips>(at_tile + k);
    _tile_loadd(4, x[0] + std::size_t(k) * x_stride[0], 64);
    _tile_loadd(6, w[0] + at, 64);
    _tile_dpbssd(0, 4, 6);
    if (Strips > 1) {
      _tile_loadd(7, w[1] + at, 64);
      _tile_dpbssd(1, 4, 7);
    }
    if (Tokens > 1) {
      _tile_loadd(5, x[1] + std::size_t(k) * x_stride[1], 64);
      _tile_dpbssd(2, 5, 6);
      if (Strips > 1) _tile_dpbssd(3, 5, 7);
    }
  }
  _tile_stored(0, sums, 64);
  if (Strips > 1) _tile_stored(1, sums + 256, 64);
  if (Tokens > 1) _tile_stored(2, sums + 512, 64);
  if (Tokens > 1 && Strips > 1) _tile_stored(3, sums + 768, 64);
}

// Groups [begin, end) of two strips (or one) times all tokens. A group's sums are added to c while
// the next group's are being made.
template <int Strips>
void int8_block(Shapes& shapes, const std::uint8_t* const* strips, const MatrixLayout& matrix,
                int begin, int end, const Panel& panel, float* c) {
  alignas(64) std::int32_t sums[2][4 * 256];
  const int token_tiles = divide_up(panel.tokens, kTileTokens);
  const int pairs = divide_up(token_tiles, 2);
  const std::size_t at = matrix.scales_bytes + std::size_t(begin) * kGroupTiles * kTileBytes;
  const std::uint8_t* now[2] = {strips[0] + at, strips[1] + at};
  const std::uint8_t* next[2] = {now[0] + 2 * matrix.strip_bytes, now[1] + 2 * matrix.strip_bytes};
  for (int p = 0; p < pairs; ++p) {
    const Pair pair(panel, 2 * p, token_tiles, c);
    const Fetch fetch = fetch_for(now, next, (end - begin) * kGroupTiles, p, pairs);
    shapes.set(pair.rows[0], pair.rows[1]);
    const auto flush_group = [&](int g) {
      for (int i = 0; i < 2; ++i)
        for (int s = 0; s < Strips && pair.rows[i]; ++s)
          flush(sums[g & 1] + (2 * i + s) * 256, pair.rows[i], strips[s] + g * 32,
                panel.scales + std::size_t(2 * p + i) * kTileTokens * panel.groups + g,
                panel.groups, pair.c[2 * i + s], g == 0);
    };
    for (int g = begin; g < end; ++g) {
      const int k = g * kGroupTiles, tiles = std::min(kGroupTiles, matrix.tiles - k);
      const int into = (g - begin) * kGroupTiles;
      const std::uint8_t* w[2] = {now[0] + into * kTileBytes, now[1] + into * kTileBytes};
      const std::uint8_t* x[2] = {pair.x[0] + std::size_t(k) * pair.stride[0],
                                  pair.x[1] + std::size_t(k) * pair.stride[1]};
      if (pair.rows[1])
        int8_group<2, Strips>(w, tiles, x, pair.stride, sums[g & 1], fetch, into);
      else
        int8_group<1, Strips>(w, tiles, x, pair.stride, sums[g & 1], fetch, into);
      if (g > begin) flush_group(g - 1);
    }
    flush_group(end - 1);
  }
}

void int8_product(const std::uint8_t* const* strips, int count, const MatrixLayout& matrix,
                  const Panel& panel, float* c, std::uint8_t*) {
  Shapes shapes;
  for (int begin = 0; begin < matrix.groups; begin += kBlockGroups) {
    const int end = std::min(begin + kBlockGroups, matrix.groups);
    for (int s = 0; s < count; s += 2) {
      const TwoStrips now(strips, count, s, 0);
      float* to = c + std::size_t(s) * panel.tokens * 16;
      if (now.count == 2)
        int8_block<2>(shapes, now.at, matrix, begin, end, panel, to);
      else
        int8_block<1>(shapes, now.at, matrix, begin, end, panel, to);
    }
  }
}

}  // namespace

void multiply_tiles() {
  // Numbers as they come, since multiplying zeros takes less power, and so less time.
  alignas(64) static const auto numbers = [] {
    std::array<std::uint16_t, 4 * 512> values;
    std::uint32_t state = 1;
    for (std::uint16_t& value : values) {
      state = state * 1664525u + 1013904223u;
      value = std::uint16_t(0x3c00u | (state >> 16 & 0x80ffu));  // about -0.03 to 0.03
    }
    return values;
  }();
  Shapes shapes;
  shapes.set(16, 16);  // which also makes all tiles zero
  _tile_loadd(4, numbers.data(), 64);
  _tile_loadd(5, numbers.data() + 512, 64);
  _tile_loadd(6, numbers.data() + 1024, 64);
  _tile_loadd(7, numbers.data() + 1536, 64);
  for (int i = 0; i < 1024; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
}

const Kernels* amx_kernels() {
  static const Kernels table = [] {
    Kernels kernels = *avx512_kernels();
    kernels.name = "amx";
    kernels.tiles[int(Dtype::bf16)] = bf16_product;
    kernels.tiles[int(Dtype::int8)] = int8_product;
    kernels.tiles[int(Dtype::int4)] = int4_product;
    kernels.finish = [] { _tile_release(); };
    return kernels;
  }();
  return &table;
}

}  // namespace moesaic
