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
void bf16_part(Shapes& shapes, const std::uint8_t* const* w, int strips, Fetch fetch, int begin,
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

void bf16_product(const std::uint8_t* const* strips, int count, const MatrixLayout& matrix,
                  const Panel& panel, float* c, std::uint8_t*) {
  const int most = tokens_at_once(count, matrix, panel);
  const int blocks = divide_up(divide_up(panel.tokens, kTileTokens), most);
  const int part = part_tiles(matrix.tiles, panel.tokens, most);
  Shapes shapes;
  for (int begin = 0; begin < matrix.tiles; begin += part) {
    const int tiles = std::min(part, matrix.tiles - begin);
    for (int s = 0; s < count; s += 2) {
      const SomeStrips some(strips, count, s, matrix, std::size_t(begin) * kTileBytes,
                            std::size_t(part) * kTileBytes, begin + part >= matrix.tiles);
      bf16_part(shapes, some.at, some.count, Fetch(some.at, some.next, tiles, blocks), begin, tiles,
                panel, most, c + std::size_t(s) * panel.tokens * 16);
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
  static_assert(2 * kNearTiles * kTileBytes <= kScratchBytes);
  const int most = tokens_at_once(count, matrix, panel);
  Shapes shapes;
  const __m512i table = int4_table();
  const std::uint8_t* const w[2] = {scratch, scratch + kNearTiles * kTileBytes};
  for (int begin = 0; begin < matrix.tiles; begin += kNearTiles) {
    const int tiles = std::min(kNearTiles, matrix.tiles - begin);
    for (int s = 0; s < count; s += 2) {
      const int here = std::min(2, count - s);
      for (int i = 0; i < here; ++i)
        for (int k = 0; k < tiles; ++k)
          unpack_int4_tile(strips[s + i] + matrix.scales_bytes + std::size_t(begin + k) * 256,
                           strips[s + i] + std::size_t(begin + k) * 32, table,
                           scratch + (std::size_t(i) * kNearTiles + k) * kTileBytes);
      __asm__ volatile("" : : : "memory");  // GCC's tile loads do not say that they read memory
      bf16_part(shapes, w, here, Fetch(), begin, tiles, panel, most,
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
