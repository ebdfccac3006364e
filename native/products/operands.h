// What the products in vectors multiply: lines of weights and a token's inputs as operands of an instruction,
// in one or two parts. Internal linkage, as in elementwise.h.
#pragma once

#include <type_traits>

#include "products/lanes.h"

namespace moesaic {
namespace {

struct Bf16Dots {
  using Sums = Floats;
  static constexpr int kParts = 1;
  static Words weights(int, Words line) { return line; }
  static Sums add(Sums sums, Words w, Words x) { return bf16_dots(sums, w, x); }
};

struct Bf16Pairs {  // even inputs, odd inputs; widened to fp32
  using Sums = Floats;
  static constexpr int kParts = 2;
  static Words weights(int part, Words line) { return (Words)(part ? high_bf16(line) : low_bf16(line)); }
  static Words inputs(int part, Words line) { return weights(part, line); }
  static Sums add(Sums sums, Words w, Words x) { return multiply_add((Floats)w, (Floats)x, sums); }
};

struct Int8Dots {  // unsigned: codes + 128
  using Sums = Ints;
  static constexpr int kParts = 1;
  static Words weights(int, Words line) { return line ^ 0x80808080u; }
  static Sums add(Sums sums, Words w, Words x) { return byte_dots(sums, w, x); }
  static std::int32_t start(std::int32_t code_sum) { return -128 * code_sum; }
};

struct Int8Pairs {  // inputs 0 and 2, inputs 1 and 3 of a word; widened to 16 bits
  using Sums = Ints;
  static constexpr int kParts = 2;
  static Words weights(int part, Words line) { return (Words)((Shorts)(part ? line : line << 8) >> 8); }
  static Words inputs(int part, Words line) { return weights(part, line); }
  static Sums add(Sums sums, Words w, Words x) { return sums + pair_products(w, x); }
  static std::int32_t start(std::int32_t) { return 0; }
};

struct Int4Dots {
  using Sums = Ints;
  static Sums add(Sums sums, Words w, Words x) { return byte_dots(sums, w, x); }
  static Ints total(Sums sums) { return sums; }
};

struct Int4Pairs {  // 16-bit sums hold a tile: 16 products of 15 and -128 are 30720
  using Sums = Shorts;
  static Sums add(Sums sums, Words w, Words x) { return in_order(sums + byte_pairs(w, x)); }
  static Ints total(Sums sums) { return pair_products((Words)sums, Words{} + 0x00010001u); }
};

using Bf16Parts = std::conditional_t<kBf16Dots, Bf16Dots, Bf16Pairs>;
using Int8Parts = std::conditional_t<kByteDots, Int8Dots, Int8Pairs>;
using Int4Parts = std::conditional_t<kByteDots, Int4Dots, Int4Pairs>;

// Some tokens of a token tile, as bf16 or as codes with scales.
struct Tokens {
  const std::uint8_t* rows;
  std::size_t tile_bytes;  // from tile to tile
  const float* scales;
  const std::int32_t* code_sums;
};

// One tile's inputs of T tokens: multiplied as they are, or converted for all lines of the tile.
template <class Parts, int T>
class TileInputs {
 public:
  [[gnu::always_inline]] void set(const std::uint8_t* rows) {
    at_ = rows;
    if constexpr (Parts::kParts > 1) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t)
        for (int i = 0; i < kRowBytes; i += kVectorBytes) {
          const Words line = load(rows + t * kRowBytes + i);
          for (int part = 0; part < Parts::kParts; ++part)
            store(Parts::inputs(part, line), &words_[t][part][i]);
        }
      at_ = words_[0][0];
    }
  }
  [[gnu::always_inline]] Words word(int token, int part, int line) const {
    return broadcast(at_ + (token * Parts::kParts + part) * kRowBytes + line * 4);
  }

 private:
  const std::uint8_t* at_;
  alignas(64) std::uint8_t words_[Parts::kParts > 1 ? T : 1][Parts::kParts][kRowBytes];
};

}  // namespace
}  // namespace moesaic
