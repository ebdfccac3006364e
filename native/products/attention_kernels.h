// What attention of many new tokens computes around its two matrix products, as a table of function pointers.
// Keys and values of a block of positions are packed as bf16 weights are, so that the products of kernels.h
// multiply them: keys with 16 positions to a strip, values with 16 of their columns.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moesaic {

constexpr int kKeyBlock = 64;       // positions; blocks begin at multiples of this
constexpr int kMaxHeadWidth = 256;  // of keys and values, which are multiples of 32

// One head's keys or values at the positions [from, from + count) of a block; the others count as zeros.
struct BlockRows {
  const std::uint16_t* rows = nullptr;  // bf16, `stride` values apart
  std::size_t stride = 0;
  int from = 0, count = 0, width = 0;
};

// Of codes in the KV cache, the scales of a block's keys and values; of a position that is not there, 0.
struct BlockScales {
  alignas(64) float keys[kKeyBlock], values[kKeyBlock];
};

// Scores of some rows (tokens times heads; a multiple of 16) with a block. Of every row, over all blocks so
// far: the largest score and the sum of exp(score - largest).
struct SoftmaxCall {
  const float* scores = nullptr;           // [kKeyBlock / 16][rows][16]
  const std::uint64_t* visible = nullptr;  // [rows]: a bit for every position of the block
  std::uint64_t broken = 0;                // positions whose values are not finite: who sees them becomes NaN
  int rows = 0;
  float scale = 1;
  float *largest = nullptr, *sums = nullptr;  // [rows]
  float* shrink = nullptr;                    // [rows]: exp(largest before - largest now)
  std::uint8_t* shares = nullptr;             // exp(score - largest) in bf16, 0 where not visible: a panel
  // Null, or what multiplies the scores and the shares, which are summed without.
  const BlockScales* scales = nullptr;
};

struct AttentionKernels {
  void (*pack_keys)(const BlockRows& keys, std::uint8_t* strips);
  // Returns the positions that have a value which is not finite: they are packed as zeros, because a share
  // of zero, of a row that does not see the position, times NaN is NaN.
  std::uint64_t (*pack_values)(const BlockRows& values, std::uint8_t* strips);
  void (*softmax)(const SoftmaxCall& call);
  // mixed[strip][row][16] = mixed * shrink[row] + added
  void (*add_mixed)(float* mixed, const float* added, const float* shrink, int rows, int strips);
  // out[i] = bf16(mixed[i / 16 * stride + i % 16] / sum)
  void (*divide)(const float* mixed, std::size_t stride, float sum, int width, std::uint16_t* out);
  // A bf16 vector becomes codes of the KV cache; returns their scale in fp16. And codes become bf16 numbers.
  std::uint16_t (*round_codes)(const std::uint16_t* from, int width, std::int8_t* to);
  void (*widen_codes)(const std::int8_t* from, int width, std::uint16_t* to);
  // Scales in fp16, `stride` apart.
  void (*widen_scales)(const std::uint16_t* from, std::size_t stride, int count, float* to);
};

}  // namespace moesaic
