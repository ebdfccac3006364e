// What every instruction set offers: a table of plain functions.
#pragma once

#include "layout/expert_layout.h"

namespace moesaic {

// Tokens of one expert, ready to be multiplied: tile after tile of up to 16 tokens,
//   [tokens / 16][tiles of inputs][tokens of this tile][64 bytes],
// bf16 values, or codes with a scale per token and group: int8 for int8 weights; for int4 weights in
// vectors 16 bits, whose upper and lower bytes lie apart (see `fill_int16`).
struct Panel {
  const std::uint8_t* data;
  const float* scales;        // of codes: [token][groups]
  const std::int32_t* sums;   // of a group's codes, [token][groups]
  int tokens, tiles, groups;

  int tile_tokens(int tile) const {
    const int left = tokens - tile * kTileTokens;
    return left < kTileTokens ? left : kTileTokens;
  }
  const std::uint8_t* tile(int token_tile) const {
    return data + std::size_t(token_tile) * kTileTokens * tiles * kRowBytes;
  }
};

inline std::size_t panel_bytes(int tokens, int tiles) {
  return std::size_t(divide_up(tokens, kTileTokens)) * kTileTokens * tiles * kRowBytes;
}

enum class Activation : int { silu = 0, gelu = 1, gelu_tanh = 2 };
enum class Value : int { f32 = 0, bf16 = 1, f16 = 2 };

// c[strip][token][16] = tokens times `count` strips; c need not be initialised. Two more addresses after
// them say what the caller reads next: they are only fetched, whatever lies there.
using Product = void (*)(const std::uint8_t* const* strips, int count, const MatrixLayout& matrix,
                         const Panel& panel, float* c, std::uint8_t* scratch);

// One strip's activation(gate) * up, to column 16 * strip of every token's row.
using Activate = void (*)(Activation kind, const float* gate, const float* up, int tokens,
                          float* rows, std::size_t row_stride);

// The same, rounded to bf16, `stride` bytes from token to token: into a panel at once.
using ActivateBf16 = void (*)(Activation kind, const float* gate, const float* up, int tokens,
                              std::uint8_t* to, std::size_t stride);

// Rows of hidden states (or of what `Activate` left) into a panel's token tile: `count` tokens. A
// row's blocks of 16 values lie `step` values apart.
using Fill = void (*)(const void* const* rows, Value value, std::size_t step, int count, int inputs,
                      int tiles, std::uint8_t* tile, float* scales, std::int32_t* sums, int groups);

// out[token][16] += weight * c[token][16] for the rows named.
using Scatter = void (*)(const float* c, int tokens, const std::int32_t* rows,
                         const float* weights, float* out, std::size_t row_stride);

// fp32 to bf16 or fp16.
using Narrow = void (*)(const float* from, int count, Value value, std::uint16_t* to);

// out = weight * (x / root mean square of x), rounded to `value` before and after the weight.
using Normalize = void (*)(const void* x, const void* weight, Value value, int count, float eps,
                           void* out);

// scores[row] = x times a row of the matrix, in fp32.
using Score = void (*)(const void* x, const void* matrix, Value value, int rows, int count,
                       float* scores);

struct Kernels {
  const char* name;
  Product vector[3];  // by Dtype
  Product tiles[3];   // null where there are none
  Fill fill_bf16, fill_int8, fill_int16;
  Activate activate;
  ActivateBf16 activate_bf16;
  Scatter scatter;
  Narrow narrow;
  Normalize normalize;
  Score score;
  void (*finish)();  // leaves no tile state behind; may be null
};

constexpr int kManyTokens = 2 * kTileTokens;  // with more, inputs are worth keeping in a cache
constexpr std::size_t kScratchBytes = 32 * 1024;  // per worker, for unpacked weights

const Kernels* avx2_kernels();
const Kernels* avx512_kernels();
const Kernels* amx_kernels();

}  // namespace moesaic
