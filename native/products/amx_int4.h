// What the products of int4 weights in AMX tiles have in common. Internal linkage, as in elementwise.h.
#pragma once

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

}  // namespace
}  // namespace moesaic
