// How much memory a layer call needs besides its experts' blocks, and how it is divided into chunks and
// waves. model_info/expert_workspace.py does the same arithmetic for memory plans; a test compares them.
#pragma once

#include <algorithm>

#include "layer/workspace.h"
#include "products/kernels.h"

namespace moesaic {

constexpr int kChunkTokens = 256;       // of one expert, computed together: their inputs fit into L2
constexpr int kWaveRows = 8192;         // rows computed between two phases: bounds the workspace
constexpr int kMemoryBoundRows = 1024;  // that are always memory bound; a layer's limit is `partial_sum_rows`
constexpr int kMeanTokens = 64;         // per expert, up to which a layer is memory bound
constexpr int kSumPhaseRows = 256;      // of a memory-bound layer, from which on all workers add them up
constexpr std::size_t kPartialSumsBytes = 128u << 20;  // limit of the memory-bound layer
constexpr int kMaxStrips = 32;          // of one product, where inputs are wide: fewer passes over them
constexpr int kCachedSumStrips = 8;     // of one product, otherwise: their sums stay in a cache
constexpr int kWideTiles = 64;          // of inputs: 256 tokens of them are half of the L2 cache

struct RowBytes {  // input and input_scales: buffers of a chunk; the others: of a wave
  std::size_t input, intermediate_f32, intermediate_panel, input_scales, intermediate_scales;

  explicit RowBytes(const ExpertLayout& layout) {
    input = std::size_t(layout.up.tiles) * kRowBytes;
    const bool quantised = layout.dtype != Dtype::bf16;  // bf16 is written into the panel directly
    intermediate_f32 = quantised ? std::size_t(layout.up.strips) * kStripOutputs * sizeof(float) : 0;
    intermediate_panel = std::size_t(layout.down.tiles) * kRowBytes;
    input_scales = round_up(std::size_t(layout.up.groups) * 4);
    intermediate_scales = round_up(std::size_t(layout.down.groups) * 4);
  }
  std::size_t wave_total() const { return intermediate_f32 + intermediate_panel + 2 * intermediate_scales; }
};

// Of the memory-bound layer: each row's contribution to the result.
inline std::size_t partial_sums_bytes(const ExpertLayout& layout, int rows) {
  return std::size_t(rows) * layout.down.strips * kStripOutputs * sizeof(float);
}

// Rows of the memory-bound layer, at most.
inline int partial_sum_rows(const ExpertLayout& layout) {
  return std::max(kMemoryBoundRows, int(kPartialSumsBytes / partial_sums_bytes(layout, 1)));
}

// Strips of one product, at most.
inline int max_strips(const MatrixLayout& matrix) {
  return matrix.tiles > kWideTiles ? kMaxStrips : kCachedSumStrips;
}

// Memory of one worker: sums of a product's strips, a chunk's inputs with their scales and code sums,
// kScratchBytes.
struct WorkerBuffers {
  std::size_t sums, inputs, scales, total;

  WorkerBuffers(const ExpertLayout& layout, int chunk_tokens) {
    const RowBytes row(layout);
    const std::size_t rows = std::max(chunk_tokens, 1);
    const int strips = std::min(kMaxStrips, std::max(2 * layout.up.strips, layout.down.strips));
    sums = round_up(strips * rows * 16 * sizeof(float));
    inputs = rows * row.input;
    scales = rows * row.input_scales;
    total = sums + inputs + 2 * scales + kScratchBytes;
  }
};

inline int max_wave_rows(int rows) { return std::min(rows, kWaveRows + kChunkTokens); }

}  // namespace moesaic
