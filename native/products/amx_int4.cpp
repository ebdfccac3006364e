// Products of int4 weights in AMX tiles: codes are converted to bf16 first. With more than one token tile the
// scales are multiplied into the weights, once for all tokens; with one that would take longer than
// everything else, and the scales are applied to the sums (a tile's inputs are one group).
#include <cstring>

#include "products/amx_bf16.h"
#include "products/amx_quantized.h"

namespace moesaic {
namespace {

static_assert(format_of(Dtype::int4).group == 32);  // inputs of a tile of bf16

constexpr std::size_t kInt4TileBytes = format_of(Dtype::int4).tile_bytes;
constexpr int kPrefetchBytes = 4096;  // of codes, ahead of the read position

inline __m512 scale_at(const std::uint8_t* scales, int tile) {
  const __m256i half = _mm256_loadu_si256((const __m256i*)(scales + std::size_t(tile) * 32));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

// The values of codes, as bf16; twice, because a lookup uses five bits.
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

// The tiles that are read after a K block of two strips: prefetched into L2 while that block is unpacked.
struct NextTiles {
  const std::uint8_t *codes[2], *scales[2];
  int scale_lines;  // with every tile; 0: the strip's scales have been read with its first block

  NextTiles(const std::uint8_t* const* strips, int count, int s, int begin, int block,
            const MatrixLayout& matrix) {
    const bool within = s + 2 < count, last = begin + block >= matrix.tiles;
    const int first = within ? begin : last ? 0 : begin + block;  // tile of the strips read next
    for (int i = 0; i < 2; ++i) {
      scales[i] = strips[within ? std::min(s + 2 + i, count - 1) : last ? count + i : std::min(i, count - 1)];
      codes[i] = after(scales[i], matrix.scales_bytes + first * kInt4TileBytes);
    }
    scale_lines = first == 0 ? divide_up(int(matrix.scales_bytes / 64), block) : 0;
  }

  // What belongs to tile k of the block.
  void prefetch(int strip, int k) const {
    for (std::size_t at = 0; at < kInt4TileBytes; at += 64)
      _mm_prefetch((const char*)after(codes[strip], k * kInt4TileBytes + at), _MM_HINT_T1);
    for (int line = scale_lines * k; line < scale_lines * (k + 1); ++line)
      _mm_prefetch((const char*)after(scales[strip], line * 64), _MM_HINT_T1);
  }

 private:
  // Any address is valid, as it is only prefetched.
  static const std::uint8_t* after(const std::uint8_t* at, std::size_t bytes) {
    return reinterpret_cast<const std::uint8_t*>(reinterpret_cast<std::uintptr_t>(at) + bytes);
  }
};

// int4 codes times scales as one tile of bf16 weights. Products are truncated: with `scale` enlarged by
// `kTruncated` the error is as often positive as negative, at most 0.71 units of the last place, and powers
// of two times a scale, which bf16 holds, stay exact. Rounding would take a quarter more instructions.
constexpr float kTruncated = 1.0f + 0.00276213586f;  // 1 + 2^-8.5

inline void unpack_scaled(const std::uint8_t* codes, __m512 scale, __m512i table, std::uint8_t* to) {
  const __m512i high = _mm512_set1_epi32(int(0xffff0000u));
  const __m128i down_in_lane = _mm_setr_epi8(2, 3, 0, 0, 6, 7, 0, 0, 10, 11, 0, 0, 14, 15, 0, 0);
  const __m512i down = _mm512_broadcast_i32x4(down_in_lane);
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    const __m512i eight = _mm512_loadu_si512(codes + r * 64);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m512i pair = _mm512_permutexvar_epi16(j ? _mm512_srli_epi16(eight, 4 * j) : eight, table);
      const __m512 even = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(pair, 16)), scale);
      const __m512 odd = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_and_si512(pair, high)), scale);
      // The upper half of `even` below the upper half of `odd`.
      const __m512i joined = _mm512_mask_shuffle_epi8(_mm512_castps_si512(odd), 0x3333333333333333u,
                                                      _mm512_castps_si512(even), down);
      _mm512_storeu_si512(to + (4 * r + j) * 64, joined);
    }
  }
}

// K blocks are unpacked into L1 and multiplied with all tokens. Next to an active SMT sibling, which has as
// many tiles there, they are half as long.
void scale_weights(const std::uint8_t* const* strips, int count, const MatrixLayout& matrix,
                   const Panel& panel, float* c, std::uint8_t* scratch) {
  static_assert(2 * kL1Tiles * kTileBytes <= kScratchBytes);
  const int at_once = token_tiles_at_once(count, matrix, panel);
  const int block = divide_up(matrix.tiles, divide_up(matrix.tiles, at_once == 1 ? kL1Tiles / 2 : kL1Tiles));
  TileConfigCache config;
  const __m512i table = int4_table();
  const __m512 truncated = _mm512_set1_ps(kTruncated);
  const std::uint8_t* const w[2] = {scratch, scratch + kL1Tiles * kTileBytes};
  for (int begin = 0; begin < matrix.tiles; begin += block) {
    const int tiles = std::min(block, matrix.tiles - begin);
    for (int s = 0; s < count; s += 2) {
      const int pair = std::min(2, count - s);
      const NextTiles next(strips, count, s, begin, block, matrix);
      for (int i = 0; i < pair; ++i)
        for (int k = 0; k < tiles; ++k) {
          next.prefetch(i, k);
          unpack_scaled(strips[s + i] + matrix.scales_bytes + (begin + k) * kInt4TileBytes,
                        _mm512_mul_ps(scale_at(strips[s + i], begin + k), truncated), table,
                        scratch + (std::size_t(i) * kL1Tiles + k) * kTileBytes);
        }
      __asm__ volatile("" : : : "memory");  // GCC's tile loads do not declare that they read memory
      bf16_k_block(config, w, pair, StripPrefetcher(), begin, tiles,
                   {panel, at_once, c + std::size_t(s) * panel.tokens * 16});
    }
  }
}

// int4 codes without their scales, as one tile of bf16 weights.
inline void unpack_codes(const std::uint8_t* codes, __m512i table, std::uint8_t* to) {
  for (int r = 0; r < 4; ++r) {
    const __m512i eight = _mm512_loadu_si512(codes + r * 64);
    _mm_prefetch((const char*)codes + r * 64 + kPrefetchBytes, _MM_HINT_T0);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j)
      _mm512_storeu_si512(to + (4 * r + j) * 64,
                          _mm512_permutexvar_epi16(j ? _mm512_srli_epi16(eight, 4 * j) : eight, table));
  }
}

// Of one strip's tiles, in turns: unpacked tiles wait for their product, and sums to be scaled, so that vectors
// and matrix unit work at the same time.
constexpr int kUnpackedTiles = 4, kUnpackedAhead = 3;
constexpr int kSumsInFlight = 2;

// One strip times up to `Rows` tokens, whose sums stay in registers; c has `rows` rows.
template <int Rows>
void scaled_strip(const std::uint8_t* strip, const MatrixLayout& matrix, __m512i table, const Panel& panel,
                  float* c, std::uint8_t* unpacked, float (*sums)[256]) {
  const int rows = panel.tokens;
  __m512 total[Rows];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) total[r] = _mm512_setzero_ps();
  for (int k = 0; k < matrix.tiles + kUnpackedAhead + kSumsInFlight; ++k) {
    if (k < matrix.tiles)
      unpack_codes(strip + matrix.scales_bytes + k * kInt4TileBytes, table,
                   unpacked + k % kUnpackedTiles * kTileBytes);
    __asm__ volatile("" : : : "memory");  // GCC's tile loads do not declare that they read memory
    const int product = k - kUnpackedAhead, summed = product - kSumsInFlight;
    if (product >= 0 && product < matrix.tiles) {
      _tile_zero(0);
      _tile_stream_loadd(4, panel.data + std::size_t(product) * rows * kRowBytes, 64);
      _tile_loadd(6, unpacked + product % kUnpackedTiles * kTileBytes, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_stored(0, sums[product % 4], 64);
    }
    if (summed < 0) continue;
    __asm__ volatile("" : : : "memory");  // not every compiler's tile stores declare that they write memory
    const __m512 scale = scale_at(strip, summed);
    const float* from = sums[summed % 4];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) total[r] = _mm512_fmadd_ps(_mm512_load_ps(from + r * 16), scale, total[r]);
  }
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r)
    if (r < rows) _mm512_storeu_ps(c + r * 16, total[r]);
}

// For one token tile at most.
void scale_sums(const std::uint8_t* const* strips, int count, const MatrixLayout& matrix, const Panel& panel,
                float* c, std::uint8_t* scratch) {
  alignas(64) float sums[4][256] = {};
  const int rows = panel.tokens;
  const auto strip = rows <= 8 ? scaled_strip<8> : scaled_strip<16>;
  TileConfigCache config;
  config.set(rows, rows);
  const __m512i table = int4_table();
  for (int s = 0; s < count; ++s)
    strip(strips[s], matrix, table, panel, c + std::size_t(s) * rows * 16, scratch, sums);
}

}  // namespace

void int4_tiles_product(const std::uint8_t* const* strips, int count, const MatrixLayout& matrix,
                        const Panel& panel, float* c, std::uint8_t* scratch) {
  (panel.tokens <= kTileTokens ? scale_sums : scale_weights)(strips, count, matrix, panel, c, scratch);
}

}  // namespace moesaic
