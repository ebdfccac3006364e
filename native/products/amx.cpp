// The table of kernels for CPUs with AMX, the bf16 product, and the loop that measures the matrix peak.
// docs/kernels.md says what stays in which cache, and why.
#include "products/amx_bf16.h"
#include "products/amx_quantized.h"
#include "products/roofline.h"

namespace moesaic {
namespace {

void bf16_product(const std::uint8_t* const* strips, int count, const MatrixLayout& matrix,
                  const Panel& panel, float* c, std::uint8_t*) {
  const int at_once = token_tiles_at_once(count, matrix, panel);
  const int token_tiles = divide_up(panel.tokens, kTileTokens);
  const int block = k_block_tiles(matrix.tiles, panel.tokens, at_once);
  TileConfigCache config;
  for (int begin = 0; begin < matrix.tiles; begin += block) {
    const int tiles = std::min(block, matrix.tiles - begin);
    for (int s = 0; s < count; s += 2) {
      const StripPair pair(strips, count, s, std::size_t(begin) * kTileBytes, std::size_t(block) * kTileBytes,
                           begin + block >= matrix.tiles);
      bf16_k_block(config, pair.at, pair.count, StripPrefetcher(pair.next, tiles, token_tiles), begin, tiles,
                   {panel, at_once, c + std::size_t(s) * panel.tokens * 16});
    }
  }
}

// Random numbers: multiplying zeros takes less power, and so less time.
void load_random_tiles() {
  alignas(64) static const auto numbers = [] {
    std::array<std::uint16_t, 4 * 512> values;
    std::uint32_t state = 1;
    for (std::uint16_t& value : values) {
      state = state * 1664525u + 1013904223u;
      value = std::uint16_t(0x3c00u | (state >> 16 & 0x80ffu));  // about -0.03 to 0.03
    }
    return values;
  }();
  configure({16, 16, 16, 16, 16, 16, 16, 16});  // also zeroes all tiles
  _tile_loadd(4, numbers.data(), 64);
  _tile_loadd(5, numbers.data() + 512, 64);
  _tile_loadd(6, numbers.data() + 1024, 64);
  _tile_loadd(7, numbers.data() + 1536, 64);
}

}  // namespace

void run_peak_tiles() {
  load_random_tiles();
  for (int i = 0; i < 1024; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
}

void run_peak_int8_tiles() {
  load_random_tiles();
  for (int i = 0; i < 1024; ++i) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_release();
}

const Kernels* amx_kernels() {
  static const Kernels table = [] {
    Kernels kernels = *avx512_kernels();
    kernels.name = "amx";
    kernels.tiles[int(Dtype::bf16)] = bf16_product;
    kernels.tiles[int(Dtype::int8)] = int8_tiles_product;
    kernels.tiles[int(Dtype::int4)] = int4_tiles_product;
    kernels.fill_many_int4 = kernels.fill_bf16;
    kernels.release_tiles = [] { _tile_release(); };
    return kernels;
  }();
  return &table;
}

}  // namespace moesaic
