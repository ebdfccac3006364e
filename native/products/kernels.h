// The functions that each instruction set provides, as a table of function pointers.
#pragma once

#include "layout/expert_layout.h"
#include "products/attention_kernels.h"
#include "products/step_kernels.h"

namespace moesaic {

// The inputs of a matrix product: tokens of one expert, in token tiles of up to 16,
//   [tokens / 16][tiles of inputs][tokens of this token tile][64 bytes],
// as bf16, or quantised with a scale per token and group of inputs: int8 codes for int8 weights; for int4
// weights in vectors 16-bit codes (high and low bytes apart, see `fill_int4`) or, of many tokens, bytes.
struct Panel {
  const std::uint8_t* data;
  const float* scales;            // of codes: [token][groups]
  const std::int32_t* code_sums;  // sum of a group's codes: [token][groups]
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
enum class FloatType : int { f32 = 0, bf16 = 1, f16 = 2 };  // of hidden states and results

// c[strip][token][16] = panel times `count` strips; c need not be initialised. `strips` has two more
// addresses after those: what the caller reads next. They are only prefetched, so any address is valid.
using Product = void (*)(const std::uint8_t* const* strips, int count, const MatrixLayout& matrix,
                         const Panel& panel, float* c, std::uint8_t* scratch);

// rows[token][16] = activation(gate) * up, of one strip; rows are `row_stride` values apart.
using Activate = void (*)(Activation kind, const float* gate, const float* up, int tokens, float* rows,
                          std::size_t row_stride);

// The same rounded to bf16, `stride` bytes from token to token: writes into a panel.
using ActivateBf16 = void (*)(Activation kind, const float* gate, const float* up, int tokens,
                              std::uint8_t* to, std::size_t stride);

// Rows (hidden states, or the output of `Activate`), and the token tile of a panel they are converted into.
struct FillCall {
  const void* const* rows;
  FloatType type;
  std::size_t block_stride;  // values between the beginnings of a row's blocks of 16
  int count, inputs;         // rows and their length
  int tiles, groups;         // of inputs, as in `Panel`
  std::uint8_t* tile;        // [tiles][tile_rows][64 bytes]
  float* scales;             // [count][group_stride]
  std::int32_t* code_sums;   // [count][group_stride]
  int tile_rows;             // of the token tile, of which `count` are filled
  int group_stride;          // groups of whole rows, of which `groups` are filled
};
using FillPanel = void (*)(const FillCall& call);

// out[rows[token]][16] += weights[token] * c[token][16]
using ScatterAdd = void (*)(const float* c, int tokens, const std::int32_t* rows, const float* weights,
                            float* out, std::size_t row_stride);

// fp32 to bf16 or fp16.
using Narrow = void (*)(const float* from, int count, FloatType type, std::uint16_t* to);

// RMSNorm: out = weight * (x / rms(x)), rounded to `type` before and after the weight.
using RmsNorm = void (*)(const void* x, const void* weight, FloatType type, int count, float eps, void* out);

// Router logits: scores[row] = dot(x, matrix[row]), summed in fp32.
using RouterScores = void (*)(const void* x, const void* matrix, FloatType type, int rows, int count,
                              float* scores);

struct Kernels {
  const char* name;
  Product vector[3];  // by Dtype
  Product tiles[3];   // for many tokens: in matrix tiles, or int4 in vectors with shorter codes; null: as few
  FillPanel fill_bf16, fill_int8, fill_int16, fill_many_int4;
  Activate activate;
  ActivateBf16 activate_bf16;
  ScatterAdd scatter_add;
  Narrow narrow;
  RmsNorm rms_norm;
  RouterScores router_scores;
  const StepKernels* step;
  const AttentionKernels* attention;
  void (*release_tiles)();  // called by a worker at the end of its work; may be null

  // How inputs are converted for weights of a precision; `many`: tokens, for the products of `tiles`.
  FillPanel fill(Dtype dtype, bool many) const {
    if (dtype == Dtype::bf16) return fill_bf16;
    if (dtype == Dtype::int8) return fill_int8;
    return many ? fill_many_int4 : fill_int16;
  }
};

// Up to so many tokens of an expert, reading the weights takes longer than multiplying; with more, the
// inputs are kept in a cache.
constexpr int kMemoryBoundTokens = 2 * kTileTokens;
constexpr std::size_t kScratchBytes = 32 * 1024;  // per worker, for unpacked weights

const Kernels* vector_kernels();       // AVX2, or portable
const Kernels* avx2_vnni_kernels();    // AVX2 and AVX-VNNI
const Kernels* avx512_base_kernels();  // AVX-512 without dot products
const Kernels* avx512_vnni_kernels();  // with those of bytes
const Kernels* avx512_kernels();       // and those of bf16
const Kernels* amx_kernels();

}  // namespace moesaic
