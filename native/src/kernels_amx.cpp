// Tile products for CPUs with AMX. Alone on its core, a thread multiplies three tiles of tokens (or
// two) and two strips at once, so that every loaded tile is used several times: what limits it is the
// second-level cache.
// Beside another thread the tile registers are what is short (amx_crowded.h), and it takes one strip
// after the other. Either way sums stay in tiles over 2048 inputs (all of them, for most experts):
// taking fewer at a time keeps weights in the first-level cache, and loses more to sums that come
// and go. Meanwhile the next strips' weights are fetched from memory.
#include <cstring>

#include "amx_crowded.h"
#include "amx_tiles.h"
#include "ceilings.h"
#include "kernels_amx_int8.h"

namespace moesaic {
namespace {

constexpr int kUnpackTiles = 32;  // int4: two strips' unpacked tiles, at most

template <int Tokens, int Strips>
inline void begin_sums(float* const* c, bool first) {
  if (first) return zero_sums<Tokens, Strips>();
  _tile_loadd(0, c[0], 64);
  if (Strips > 1) _tile_loadd(1, c[1], 64);
  if (Tokens > 1) _tile_loadd(2, c[2], 64);
  if (Tokens > 1 && Strips > 1) _tile_loadd(3, c[3], 64);
}

// Sums of three full tiles of tokens, `apart` bytes from one to the next, and two strips: five tiles
// come from the second-level cache for six products, the middle ones once more from the first.
void bf16_triple(const std::uint8_t* const* w, int tiles, const std::uint8_t* x, std::size_t apart,
                 float* c0, float* c1, bool first, const Fetch& fetch) {
  if (first) {
    zero_sums<2, 2>();
    _tile_zero(4);
    _tile_zero(5);
  } else {
    _tile_loadd(0, c0, 64);
    _tile_loadd(1, c0 + 256, 64);
    _tile_loadd(2, c0 + 512, 64);
    _tile_loadd(3, c1, 64);
    _tile_loadd(4, c1 + 256, 64);
    _tile_loadd(5, c1 + 512, 64);
  }
  for (int k = 0; k < tiles; ++k) {
    const std::size_t at = std::size_t(k) * kTileBytes;
    fetch.step<2>(k);
    _tile_loadd(7, w[0] + at, 64);
    _tile_loadd(6, x + at, 64);
    _tile_dpbf16ps(0, 6, 7);
    _tile_loadd(6, x + at + apart, 64);
    _tile_dpbf16ps(1, 6, 7);
    _tile_loadd(6, x + at + 2 * apart, 64);
    _tile_dpbf16ps(2, 6, 7);
    _tile_loadd(7, w[1] + at, 64);
    _tile_dpbf16ps(5, 6, 7);
    _tile_loadd(6, x + at + apart, 64);
    _tile_dpbf16ps(4, 6, 7);
    _tile_loadd(6, x + at, 64);
    _tile_dpbf16ps(3, 6, 7);
  }
  _tile_stored(0, c0, 64);
  _tile_stored(1, c0 + 256, 64);
  _tile_stored(2, c0 + 512, 64);
  _tile_stored(3, c1, 64);
  _tile_stored(4, c1 + 256, 64);
  _tile_stored(5, c1 + 512, 64);
}

// Threes of full tiles of tokens to begin with, such that only pairs are left.
inline int triples_of(const Panel& panel, int token_tiles) {
  int triples = panel.tokens / kTileTokens / 3;
  while (triples && (token_tiles - 3 * triples) % 2) --triples;
  return triples;
}

// Tiles [begin, begin + tiles) of strips (which lie at w) times all tokens.
template <int Strips>
void bf16_block(Shapes& shapes, const std::uint8_t* const* w, const std::uint8_t* const* next,
                int begin, int tiles, const Panel& panel, float* c) {
  const int token_tiles = divide_up(panel.tokens, kTileTokens);
  const int triples = Strips == 2 ? triples_of(panel, token_tiles) : 0;
  const int blocks = triples + divide_up(token_tiles - 3 * triples, 2);
  for (int b = 0; b < blocks; ++b) {
    const Fetch fetch = next ? fetch_for(w, next, tiles, b, blocks) : Fetch();
    if (b < triples) {
      float* to = c + std::size_t(3 * b) * kTileTokens * 16;
      shapes.set(kTileTokens, kTileTokens);
      bf16_triple(w, tiles, panel.tile(3 * b) + std::size_t(begin) * kTileBytes,
                  panel.tiles * kTileBytes, to, to + std::size_t(panel.tokens) * 16, begin == 0,
                  fetch);
      continue;
    }
    Pair pair(panel, 3 * triples + 2 * (b - triples), token_tiles, c);
    for (int i = 0; i < 2; ++i) pair.x[i] += std::size_t(begin) * pair.stride[i];
    shapes.set(pair.rows[0], pair.rows[1]);
    pair.dispatch([&]<int Tokens, bool Level>() {
      begin_sums<Tokens, Strips>(pair.c, begin == 0);
      multiply<Dtype::bf16, Tokens, Strips, Level>(w, tiles, pair.x, pair.stride, fetch, 0);
      store_sums<Tokens, Strips>(pair.c);
    });
  }
}

void bf16_any(Shapes& shapes, int strips, const std::uint8_t* const* w,
              const std::uint8_t* const* next, int begin, int tiles, const Panel& panel, float* c) {
  if (strips == 2)
    bf16_block<2>(shapes, w, next, begin, tiles, panel, c);
  else
    bf16_block<1>(shapes, w, next, begin, tiles, panel, c);
}

void bf16_product(const std::uint8_t* const* strips, int count, const MatrixLayout& matrix,
                  const Panel& panel, float* c, std::uint8_t*) {
  const int most = strips_at_once(count, matrix, panel);
  Shapes shapes;
  const int block = block_tiles(matrix.tiles);
  for (int begin = 0; begin < matrix.tiles; begin += block) {
    const int tiles = std::min(block, matrix.tiles - begin);
    const std::size_t at = std::size_t(begin) * kTileBytes;
    for (int s = 0; s < count; s += most) {
      const SomeStrips some(strips, count, s, most, matrix, at);
      bf16_any(shapes, some.count, some.at, some.next, begin, tiles, panel,
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
  const int most = strips_at_once(count, matrix, panel);
  Shapes shapes;
  const __m512i table = int4_table();
  for (int begin = 0; begin < matrix.tiles; begin += kUnpackTiles) {
    const int tiles = std::min(kUnpackTiles, matrix.tiles - begin);
    for (int s = 0; s < count; s += most) {
      const SomeStrips some(strips, count, s, most, matrix, 0);
      const std::uint8_t* w[2] = {scratch, scratch + kUnpackTiles * kTileBytes};
      for (int i = 0; i < some.count; ++i)
        for (int k = 0; k < tiles; ++k)
          unpack_int4_tile(some.at[i] + matrix.scales_bytes + std::size_t(begin + k) * 256,
                           some.at[i] + std::size_t(begin + k) * 32, table,
                           scratch + (std::size_t(i) * kUnpackTiles + k) * kTileBytes);
      __asm__ volatile("" : : : "memory");  // GCC's tile loads do not say that they read memory
      bf16_any(shapes, some.count, w, nullptr, begin, tiles, panel,
               c + std::size_t(s) * panel.tokens * 16);
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
  configure({16, 16, 16, 16, 16, 16, 16, 16});  // which also makes all tiles zero
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
    kernels.tiles[int(Dtype::int8)] = int8_tiles_product;
    kernels.tiles[int(Dtype::int4)] = int4_product;
    kernels.finish = [] { _tile_release(); };
    return kernels;
  }();
  return &table;
}

}  // namespace moesaic
