// What a decode step computes between its matrix products, as a table of function pointers. Activations are
// bf16 and rounded where PyTorch rounds them; sums are fp32.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moesaic {

constexpr int kCacheBlock = 64;  // positions of a sequence that lie side by side in the KV cache

// The row of a layer's cache where a position lies, by its sequence's table of blocks.
inline std::size_t cache_row(const std::int32_t* table, int position) {
  return std::size_t(table[position / kCacheBlock]) * kCacheBlock + position % kCacheBlock;
}

// Vectors of the KV cache, from the one of row 0 on: bf16, or codes with a scale each (see kv_codes.h).
struct CacheRows {
  const std::uint16_t* values = nullptr;
  const std::int8_t* codes = nullptr;
  const std::uint16_t* scales = nullptr;         // fp16, of codes
  std::size_t stride = 0, scale_stride = 0;  // from row to row
};

// Some positions of one sequence, for query heads that read the same keys and values. Scores are the sum of
// two products: latent attention keeps a key in two parts. All strides are in values.
struct AttentionCall {
  struct Part {
    const float* queries = nullptr;  // [heads, width]
    CacheRows keys;
    int width = 0;  // 0: there is no such part
  };
  Part parts[2];
  CacheRows values;
  int value_width = 0;
  const std::int32_t* table = nullptr;  // the sequence's blocks
  int heads = 0, first = 0, positions = 0;  // `first` is a multiple of 16
  float scale = 1;
  float* scores = nullptr;  // scratch: [heads + 1, positions rounded up to 16]; of codes, the last are scales
  // Results: of every head the largest score, the sum of exp(score - largest), and the values weighted so.
  float *largest = nullptr, *sums = nullptr, *mixed = nullptr;  // [heads], [heads], [heads, value_width]
};

constexpr int kMaxAttentionParts = 16;  // that a sequence is cut into

// How to turn a head: cosines and sines of the first `dim` / 2 angles.
struct Turn {
  const float *cos = nullptr, *sin = nullptr;
  int dim = 0;
  bool interleaved = false;  // pairs are neighbours, instead of half of `dim` apart
};

struct StepKernels {
  // out[i] = bf16(c[i / 16 * c_stride + i % 16] + bias[i]); bias may be null.
  void (*round_strips)(const float* c, std::size_t c_stride, const std::uint16_t* bias, int count,
                       std::uint16_t* out);
  // to += bf16(a + gate * b), rounded after every operation; b may be null.
  void (*add_residual)(std::uint16_t* to, const std::uint16_t* a, const std::uint16_t* b, float gate,
                       int count);
  void (*clip)(std::uint16_t* x, int count, float limit);
  // Turns one head of `width` values in place.
  void (*rotate)(std::uint16_t* x, const Turn& turn);
  void (*widen)(const std::uint16_t* from, int count, float* to);
  void (*attend)(const AttentionCall& call);
  // One head's result from the parts of its sequence, at most kMaxAttentionParts: out = bf16(sum of mixed /
  // sum of sums), both scaled to the largest score of all. Parts are `scalar_stride` values apart in
  // `largest` and `sums`, `stride` in `mixed`.
  void (*merge)(const float* largest, const float* sums, const float* mixed, int parts,
                std::size_t scalar_stride, std::size_t stride, int width, std::uint16_t* out);
  // out[column] = sum over rows of x[row] * matrix[row][column], matrix in bf16 [rows, columns].
  void (*combine_rows)(const float* x, const std::uint16_t* matrix, int rows, int columns, float* out);
};

}  // namespace moesaic
