// Where an expert's weights lie in its block. docs/kernels.md draws it.
//
// A matrix [outputs, inputs] is cut into strips of 16 outputs. A strip is contiguous: first its
// scales (quantised precisions only), then its tiles, each 16 outputs by as many inputs as fill
// 64 bytes times 16 rows. gate and up alternate strip by strip, then come down's strips.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moesaic {

enum class Dtype : int { bf16 = 0, int8 = 1, int4 = 2 };

constexpr int kStripOutputs = 16;
constexpr int kTileTokens = 16;
constexpr int kRowBytes = 64;              // one token's share of a tile; one line of weights
constexpr std::size_t kTileBytes = 1024;   // of a full tile of tokens, or of bf16 and int8 weights
constexpr std::size_t kAlignment = 64;

constexpr int divide_up(int value, int by) { return (value + by - 1) / by; }

struct Format {
  int tile_inputs;         // inputs that one tile of weights covers
  std::size_t tile_bytes;  // of such a tile
  int group;               // inputs that share a scale; 0: no scales
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
    const Format form = format_of(dtype);
    strips = divide_up(outputs, kStripOutputs);
    tiles = divide_up(inputs, form.tile_inputs);
    groups = form.group ? divide_up(inputs, form.group) : 0;
    const std::size_t used = std::size_t(groups) * kStripOutputs * 2;
    scales_bytes = (used + kAlignment - 1) / kAlignment * kAlignment;
    strip_bytes = scales_bytes + std::size_t(tiles) * form.tile_bytes;
  }
};

struct ExpertLayout {
  Dtype dtype;
  int hidden, intermediate;
  MatrixLayout up, down;  // gate is as up
  std::size_t down_at, bytes;

  ExpertLayout(Dtype dtype_, int hidden_, int intermediate_)
      : dtype(dtype_), hidden(hidden_), intermediate(intermediate_),
        up(dtype_, intermediate_, hidden_), down(dtype_, hidden_, intermediate_) {
    down_at = 2 * std::size_t(up.strips) * up.strip_bytes;
    bytes = down_at + std::size_t(down.strips) * down.strip_bytes;
  }

  std::size_t gate_strip(int strip) const { return std::size_t(2 * strip) * up.strip_bytes; }
  std::size_t up_strip(int strip) const { return std::size_t(2 * strip + 1) * up.strip_bytes; }
  std::size_t down_strip(int strip) const { return down_at + std::size_t(strip) * down.strip_bytes; }
};

}  // namespace moesaic
