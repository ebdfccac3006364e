// How much memory a layer call needs beside its experts' blocks, and how far it goes at a time.
// core/expert_workspace.py does the same sums for plans made in advance; a test compares them.
#pragma once

#include <algorithm>

#include "products/kernels.h"

namespace moesaic {

constexpr int kChunkTokens = 256;  // of one expert, computed together: their inputs fit into L2
constexpr int kWaveRows = 8192;    // rows computed between two phases: bounds the workspace
constexpr int kFewRows = 1024;     // with no more, and few tokens for every expert, results wait to be added
constexpr int kMostStrips = 32;    // in one product, where inputs are wide: fewer passes over them
constexpr int kCloseStrips = 8;    // in one product, otherwise: their sums had better stay close
constexpr int kWideTiles = 64;     // of inputs: so much of 256 tokens is half of the L2 cache

struct Buffers {  // bytes per row: of a chunk, in_row and scales_in, of a wave the others
  std::size_t in_row, inner_row, inner_panel_row, scales_in, scales_inner;

  explicit Buffers(const ExpertLayout& layout) {
    in_row = std::size_t(layout.up.tiles) * kRowBytes;
    const bool codes = layout.dtype != Dtype::bf16;  // bf16 goes into the next product's tiles at once
    inner_row = codes ? std::size_t(layout.up.strips) * kStripOutputs * sizeof(float) : 0;
    inner_panel_row = std::size_t(layout.down.tiles) * kRowBytes;
    scales_in = round_up(std::size_t(layout.up.groups) * 4);
    scales_inner = round_up(std::size_t(layout.down.groups) * 4);
  }
  std::size_t per_row() const {
    return inner_row + inner_panel_row + 2 * scales_inner;
  }
};

// Of few rows: what each adds to the result.
inline std::size_t parts_bytes(const ExpertLayout& layout, int rows) {
  return std::size_t(rows) * layout.down.strips * kStripOutputs * sizeof(float);
}

// Strips that a product takes at most.
inline int most_strips(const MatrixLayout& matrix) {
  return matrix.tiles > kWideTiles ? kMostStrips : kCloseStrips;
}

// Memory that a worker has for himself: the sums of a product's strips, a chunk's inputs with their
// scales and sums, kScratchBytes.
struct Own {
  std::size_t sums, inputs, scales, all;

  Own(const ExpertLayout& layout, int most_tokens) {  // of a chunk
    const Buffers buffers(layout);
    const std::size_t rows = std::max(most_tokens, 1);
    const int strips = std::min(kMostStrips, std::max(2 * layout.up.strips, layout.down.strips));
    sums = round_up(strips * rows * 16 * sizeof(float));
    inputs = rows * buffers.in_row;
    scales = rows * buffers.scales_in;
    all = sums + inputs + 2 * scales + kScratchBytes;
  }
};

inline int rows_at_once(int rows) { return std::min(rows, kWaveRows + kChunkTokens); }

}  // namespace moesaic
