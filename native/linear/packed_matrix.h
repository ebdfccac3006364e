// A packed matrix outside the experts' blocks, and how it is multiplied.
#pragma once

#include <algorithm>

#include "products/kernels.h"

namespace moesaic {

// [outputs, inputs], packed strip after strip; the memory belongs to the caller.
struct PackedMatrix {
  Dtype dtype = Dtype::bf16;
  MatrixLayout layout{Dtype::bf16, 0, 0};
  const std::uint8_t* data = nullptr;  // null: there is no such matrix

  PackedMatrix() = default;
  PackedMatrix(Dtype dtype_, int outputs, int inputs, const std::uint8_t* data_)
      : dtype(dtype_), layout(dtype_, outputs, inputs), data(data_) {}

  const std::uint8_t* strip(int number) const { return data + std::size_t(number) * layout.strip_bytes; }
  std::size_t bytes() const { return std::size_t(layout.strips) * layout.strip_bytes; }
};

// Which kernels multiply matrices. `tiles_from`: by precision, tokens from which on `Kernels::tiles` are used.
struct Multiplier {
  const Kernels* kernels = nullptr;
  int tiles_from[3] = {0, 0, 0};

  bool in_tiles(Dtype dtype, int tokens) const {
    const int from = tiles_from[int(dtype)];
    return from > 0 && tokens >= from && kernels->tiles[int(dtype)];
  }
  Product product(Dtype dtype, int tokens) const {
    return (in_tiles(dtype, tokens) ? kernels->tiles : kernels->vector)[int(dtype)];
  }
  FillPanel fill(Dtype dtype, int tokens) const {
    return kernels->fill(dtype, in_tiles(dtype, tokens));
  }
};

// The memory of a panel for tokens that are multiplied with matrices of one precision and width.
struct PanelBuffer {
  std::uint8_t* data = nullptr;
  float* scales = nullptr;
  std::int32_t* code_sums = nullptr;

  // Bytes of everything for matrices of `inputs` inputs, the largest of all precisions.
  static std::size_t bytes(int tokens, int inputs) {
    const std::size_t rows = std::size_t(divide_up(tokens, kTileTokens)) * kTileTokens;
    return rows * (divide_up(inputs, 32) * kRowBytes + 2 * divide_up(inputs, 32) * sizeof(float)) +
           3 * kAlignment;
  }
  static PanelBuffer at(std::uint8_t* memory, int tokens, int inputs) {
    const std::size_t rows = std::size_t(divide_up(tokens, kTileTokens)) * kTileTokens;
    const std::size_t tiles = divide_up(inputs, 32);
    PanelBuffer buffer;
    buffer.data = memory;
    buffer.scales = reinterpret_cast<float*>(memory + rows * tiles * kRowBytes);
    buffer.code_sums = reinterpret_cast<std::int32_t*>(buffer.scales + rows * tiles);
    return buffer;
  }
  Panel panel(const MatrixLayout& matrix, int tokens) const {
    return {data, scales, code_sums, tokens, matrix.tiles, matrix.groups};
  }
};

// Fills one token tile of a panel from rows that lie `stride` values apart.
inline void fill_tile(const Multiplier& multiplier, Dtype dtype, const MatrixLayout& matrix,
                      const PanelBuffer& buffer, const void* rows, FloatType type, std::size_t stride,
                      int tokens, int tile) {
  const Panel panel = buffer.panel(matrix, tokens);
  const std::size_t size = type == FloatType::f32 ? 4 : 2;
  const void* at[kTileTokens];
  const int first = tile * kTileTokens, count = panel.tile_tokens(tile);
  for (int t = 0; t < count; ++t) at[t] = static_cast<const char*>(rows) + (first + t) * stride * size;
  const std::size_t group = std::size_t(first) * matrix.groups;
  multiplier.fill(dtype, tokens)({.rows = at,
                                  .type = type,
                                  .block_stride = kStripOutputs,
                                  .count = count,
                                  .inputs = matrix.inputs,
                                  .tiles = matrix.tiles,
                                  .groups = matrix.groups,
                                  .tile = const_cast<std::uint8_t*>(panel.tile(tile)),
                                  .scales = buffer.scales + group,
                                  .code_sums = buffer.code_sums + group,
                                  .tile_rows = count,
                                  .group_stride = matrix.groups});
}

// Columns that may be filled by themselves: a multiple of this many, unless they are all.
inline int fill_unit(Dtype dtype) {
  return std::max(format_of(dtype).tile_inputs, format_of(dtype).group);
}

// Fills columns [first, first + columns) of one token's row, which begin at `values`, in bf16.
inline void fill_columns(const Multiplier& multiplier, Dtype dtype, const MatrixLayout& matrix,
                         const PanelBuffer& buffer, const std::uint16_t* values, int tokens, int token,
                         int first, int columns) {
  const Panel panel = buffer.panel(matrix, tokens);
  const Format format = format_of(dtype);
  const bool all = columns == matrix.inputs;
  const int tile = token / kTileTokens, rows = panel.tile_tokens(tile);
  const std::size_t line = std::size_t(first / format.tile_inputs) * rows + token % kTileTokens;
  const std::size_t group = std::size_t(token) * matrix.groups + (format.group ? first / format.group : 0);
  const void* row = values;
  multiplier.fill(dtype, tokens)({.rows = &row,
                                  .type = FloatType::bf16,
                                  .block_stride = kStripOutputs,
                                  .count = 1,
                                  .inputs = columns,
                                  .tiles = all ? matrix.tiles : columns / format.tile_inputs,
                                  .groups = all || !format.group ? matrix.groups : columns / format.group,
                                  .tile = const_cast<std::uint8_t*>(panel.tile(tile)) + line * kRowBytes,
                                  .scales = buffer.scales + group,
                                  .code_sums = buffer.code_sums + group,
                                  .tile_rows = rows,
                                  .group_stride = matrix.groups});
}

}  // namespace moesaic
