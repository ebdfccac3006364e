// Packs a block of keys and values as bf16 weights: words of two values, see docs/kernels.md. Keys have two
// neighbouring values of a position in a word, so a tile is a transposed matrix of words; values have two
// neighbouring positions. Internal linkage, as in elementwise.h.
#pragma once

#include <utility>

#include "products/attention_kernels.h"
#include "products/elementwise.h"
#include "products/lanes.h"

namespace moesaic {
namespace {

// The address of every position's row; zeros where there is none.
struct BlockPositions {
  const std::uint16_t* rows[kKeyBlock];

  explicit BlockPositions(const BlockRows& block) {
    for (int i = 0; i < kKeyBlock; ++i) {
      const bool there = i >= block.from && i < block.from + block.count;
      rows[i] = there ? block.rows + std::size_t(i - block.from) * block.stride : kZeros;
    }
  }

  alignas(64) static constexpr std::uint16_t kZeros[kMaxHeadWidth] = {};
};

// Exchanges elements of two vectors that are `Step` lanes apart: with all steps, a matrix is transposed.
template <int Step, std::size_t... Lanes>
[[gnu::always_inline]] inline void exchange(Words& a, Words& b, std::index_sequence<Lanes...>) {
  const Words first = a;
  a = __builtin_shuffle(first, b, Words{(Lanes & Step ? kLanes + Lanes - Step : Lanes)...});
  b = __builtin_shuffle(first, b, Words{(Lanes & Step ? kLanes + Lanes : Lanes + Step)...});
}

template <int Step>
[[gnu::always_inline]] inline void exchange_all(Words (&v)[kLanes]) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i)
    if (!(i & Step)) exchange<Step>(v[i], v[i + Step], std::make_index_sequence<kLanes>());
}

[[gnu::always_inline]] inline void transpose(Words (&v)[kLanes]) {
  exchange_all<1>(v);
  exchange_all<2>(v);
  if constexpr (kLanes > 4) exchange_all<4>(v);
  if constexpr (kLanes > 8) exchange_all<8>(v);
}

// 16 positions by 32 values, from `column` on.
inline void pack_key_tile(const std::uint16_t* const* rows, int column, std::uint8_t* tile) {
  for (int first = 0; first < 16; first += kLanes)
    for (int line = 0; line < 16; line += kLanes) {
      Words v[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) v[i] = load(rows[first + i] + column + 2 * line);
      transpose(v);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) store(v[i], tile + (line + i) * kRowBytes + first * 4);
    }
}

void pack_keys(const BlockRows& keys, std::uint8_t* strips) {
  const BlockPositions positions(keys);
  for (int first = 0; first < kKeyBlock; first += kStripOutputs)
    for (int column = 0; column < keys.width; column += 32, strips += kTileBytes)
      pack_key_tile(positions.rows + first, column, strips);
}

// Returns whether all values are finite.
inline bool pack_pairs(const BlockPositions& positions, int width, std::uint8_t* strips) {
  constexpr std::uint32_t kExponents = 0x7f807f80, kOne = 0x00800080, kOverflow = 0x80008000;
  U16 exponents = {};  // plus one: those of infinities and NaN overflow
  for (int line = 0; line < kKeyBlock / 2; ++line) {
    const std::uint16_t *even = positions.rows[2 * line], *odd = positions.rows[2 * line + 1];
    for (int column = 0; column < width; column += kStripOutputs) {
      const U16 pairs = widen(even + column) | widen(odd + column) << 16;
      exponents |= (pairs & kExponents) + kOne;
      std::memcpy(strips + (std::size_t(column) * (kKeyBlock / 2) / kStripOutputs + line) * kRowBytes, &pairs,
                  sizeof pairs);
    }
  }
  std::uint32_t any = 0;
  for (int i = 0; i < 16; ++i) any |= exponents[i];
  return !(any & kOverflow);
}

std::uint64_t pack_values(const BlockRows& values, std::uint8_t* strips) {
  BlockPositions positions(values);
  if (pack_pairs(positions, values.width, strips)) return 0;
  std::uint64_t broken = 0;
  for (int i = 0; i < kKeyBlock; ++i)
    for (int column = 0; column < values.width; ++column)
      if ((positions.rows[i][column] & 0x7f80) == 0x7f80) broken |= std::uint64_t(1) << i;
  for (int i = 0; i < kKeyBlock; ++i)
    if (broken >> i & 1) positions.rows[i] = BlockPositions::kZeros;
  pack_pairs(positions, values.width, strips);
  return broken;
}

}  // namespace
}  // namespace moesaic
