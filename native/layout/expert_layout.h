// Byte offsets within a packed expert (a block). docs/kernels.md draws the layout.
//
// A matrix [outputs, inputs] is cut into strips of 16 outputs. A strip is contiguous: first its scales
// (quantised precisions only), then its tiles, each 16 outputs by as many inputs as fill 16 lines of 64
// bytes (int4: 4 lines). Strips of gate and up alternate; the strips of down follow.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moesaic {

enum class Dtype : int { bf16 = 0, int8 = 1, int4 = 2 };

constexpr int kStripOutputs = 16;
constexpr int kTileTokens = 16;
constexpr int kRowBytes = 64;             // of one token in a tile of inputs; also one line of weights
constexpr std::size_t kTileBytes = 1024;  // of a full token tile, and of bf16 and int8 weights
constexpr std::size_t kAlignment = 64;
constexpr int kMaxExperts = 1 << 20;  // of a layer; arrays have an entry for each

constexpr int divide_up(int value, int by) { return (value + by - 1) / by; }

struct Format {
  int tile_inputs;         // inputs per tile of weights
  std::size_t tile_bytes;  // per tile of weights
  int group;               // inputs per scale; 0: no scales
};

constexpr Format format_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::int8: return {64, 1024, 256};
    case Dtype::int4: return {32, 256, 32};
    default: return {32, 1024, 0};
  }
}

struct MatrixLayout {
  int outputs, inputs;
  int strips, tiles, groups;  // tiles and groups of one strip
  std::size_t scales_bytes, strip_bytes;

  MatrixLayout(Dtype dtype, int outputs_, int inputs_) : outputs(outputs_), inputs(inputs_) {
    const Format format = format_of(dtype);
    strips = divide_up(outputs, kStripOutputs);
    tiles = divide_up(inputs, format.tile_inputs);
    groups = format.group ? divide_up(inputs, format.group) : 0;
    const std::size_t scales = std::size_t(groups) * kStripOutputs * 2;
    scales_bytes = (scales + kAlignment - 1) / kAlignment * kAlignment;
    strip_bytes = scales_bytes + std::size_t(tiles) * format.tile_bytes;
  }
};

struct ExpertLayout {
  Dtype dtype;
  int hidden, intermediate;
  MatrixLayout up, down;  // gate has the layout of up
  std::size_t down_offset, bytes;

  ExpertLayout(Dtype dtype_, int hidden_, int intermediate_)
      : dtype(dtype_),
        hidden(hidden_),
        intermediate(intermediate_),
        up(dtype_, intermediate_, hidden_),
        down(dtype_, hidden_, intermediate_) {
    down_offset = 2 * std::size_t(up.strips) * up.strip_bytes;
    bytes = down_offset + std::size_t(down.strips) * down.strip_bytes;
  }

  std::size_t gate_strip(int strip) const { return std::size_t(2 * strip) * up.strip_bytes; }
  std::size_t up_strip(int strip) const { return std::size_t(2 * strip + 1) * up.strip_bytes; }
  std::size_t down_strip(int strip) const { return down_offset + std::size_t(strip) * down.strip_bytes; }
};

}  // namespace moesaic
