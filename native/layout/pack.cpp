#include "layout/pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace moesaic {
namespace {

constexpr float kWhole = 1.0f / 1024;  // how far from a whole number a multiple may be

float from_bf16(std::uint16_t half) {
  const std::uint32_t bits = std::uint32_t(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// Round to nearest, ties to even; NaN stays NaN.
std::uint16_t to_bf16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (value != value) return std::uint16_t(bits >> 16 | 0x40);
  return std::uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// `count` values of a row starting at column `from`, zero beyond its end (or where there is no row).
void read_row(const void* row, FloatType type, int from, int count, int inputs, float* to) {
  const int there = row ? std::clamp(inputs - from, 0, count) : 0;
  if (type == FloatType::f32) {
    if (there) std::memcpy(to, static_cast<const float*>(row) + from, there * sizeof(float));
  } else {
    const std::uint16_t* halves = static_cast<const std::uint16_t*>(row) + from;
    if (type == FloatType::bf16) {
      for (int i = 0; i < there; ++i) to[i] = from_bf16(halves[i]);
    } else {
      for (int i = 0; i < there; ++i) {
        _Float16 half;
        std::memcpy(&half, halves + i, 2);
        to[i] = float(half);
      }
    }
  }
  std::fill(to + there, to + count, 0.0f);
}

using StripRows = const void* const (&)[kStripOutputs];

void pack_bf16(StripRows rows, FloatType type, const MatrixLayout& matrix, std::uint8_t* strip) {
  for (int k = 0; k < matrix.tiles; ++k) {
    std::uint32_t* tile = reinterpret_cast<std::uint32_t*>(strip + k * kTileBytes);
    const int from = k * 32;
    for (int n = 0; n < kStripOutputs; ++n) {
      alignas(64) std::uint32_t pairs[16];
      if (rows[n] && type == FloatType::bf16 && from + 32 <= matrix.inputs) {
        std::memcpy(pairs, static_cast<const std::uint16_t*>(rows[n]) + from, 64);
      } else {
        float values[32];
        read_row(rows[n], type, from, 32, matrix.inputs, values);
        for (int p = 0; p < 16; ++p)
          pairs[p] = to_bf16(values[2 * p]) | std::uint32_t(to_bf16(values[2 * p + 1])) << 16;
      }
      for (int p = 0; p < 16; ++p) tile[p * 16 + n] = pairs[p];
    }
  }
}

// Whether the weights are whole multiples of largest / top, as those that were 4-bit integers before
// are, and have codes: with 8, none as large as the largest has the other sign.
bool on_grid(const float* weights, int count, float largest, float top) {
  const float per_step = top / largest;
  for (int i = 0; i < count; ++i) {
    const float code = weights[i] * per_step;
    if (!(std::fabs(code - std::nearbyint(code)) < kWhole) || !(code > -7.5f)) return false;
  }
  return true;
}

// The code of an int4 group's largest weight: 8, where codes it had before are not kept by another.
float top_of(const float* weights, int count, float largest) {
  for (float top = 8; top >= 1; --top)
    if (on_grid(weights, count, largest, top)) return top;
  return 8;
}

// A group's scale, which its largest weight sets. Returns false if a weight is not finite.
template <int Bits>
bool scale_of(const float* weights, int count, std::uint16_t& scale) {
  float low = 0, high = 0, zero = 0;
  for (int i = 0; i < count; ++i) {
    low = weights[i] < low ? weights[i] : low;
    high = weights[i] > high ? weights[i] : high;
    zero += weights[i] * 0.0f;
  }
  const float largest = high > -low ? high : low;
  scale = to_bf16(largest / (Bits == 8 ? 127.0f : -top_of(weights, count, largest)));
  if (std::fabs(from_bf16(scale)) < 1.17549435e-38f) scale = 0;
  return zero == 0.0f && std::isfinite(from_bf16(scale));
}

template <int Bits>
void to_codes(const float* weights, int count, std::uint16_t scale, std::int32_t* codes) {
  constexpr float kLimit = Bits == 8 ? 128 : 8;
  const float divisor = scale ? from_bf16(scale) : 1.0f;
  for (int i = 0; i < count; ++i) {
    const float code = std::nearbyint(weights[i] / divisor);
    codes[i] = std::int32_t(std::min(std::max(code, -kLimit), kLimit - 1));
  }
}

bool pack_int8(StripRows rows, FloatType type, const MatrixLayout& matrix, std::uint8_t* strip) {
  constexpr int kGroup = format_of(Dtype::int8).group;
  bool finite = true;
  for (int g = 0; g < matrix.groups; ++g) {
    for (int n = 0; n < kStripOutputs; ++n) {
      float weights[kGroup];
      std::int32_t codes[kGroup];
      read_row(rows[n], type, g * kGroup, kGroup, matrix.inputs, weights);
      std::uint16_t scale;
      finite &= scale_of<8>(weights, kGroup, scale);
      std::memcpy(strip + (g * kStripOutputs + n) * 2, &scale, 2);
      to_codes<8>(weights, kGroup, scale, codes);
      for (int q = 0; q < kGroup / 4; ++q) {
        const int k = g * (kGroup / 64) + q / 16;
        if (k >= matrix.tiles) break;
        std::uint8_t* to = strip + matrix.scales_bytes + k * kTileBytes + (q % 16 * 16 + n) * 4;
        for (int i = 0; i < 4; ++i) to[i] = std::uint8_t(codes[4 * q + i]);
      }
    }
  }
  return finite;
}

// Nibble j of a word's lower half is input 2j, of its upper half input 2j + 1; stored as code + 8.
bool pack_int4(StripRows rows, FloatType type, const MatrixLayout& matrix, std::uint8_t* strip) {
  bool finite = true;
  for (int k = 0; k < matrix.tiles; ++k) {
    for (int n = 0; n < kStripOutputs; ++n) {
      float weights[32];
      std::int32_t codes[32];
      read_row(rows[n], type, k * 32, 32, matrix.inputs, weights);
      std::uint16_t scale;
      finite &= scale_of<4>(weights, 32, scale);
      std::memcpy(strip + (k * kStripOutputs + n) * 2, &scale, 2);
      to_codes<4>(weights, 32, scale, codes);
      for (int r = 0; r < 4; ++r) {
        std::uint32_t word = 0;
        for (int i = 0; i < 8; ++i) word |= std::uint32_t(codes[8 * r + i] + 8) << (i / 2 * 4 + i % 2 * 16);
        std::memcpy(strip + matrix.scales_bytes + k * 256 + (r * 16 + n) * 4, &word, 4);
      }
    }
  }
  return finite;
}

// Packs one strip; false if it cannot be quantised because a weight is not finite.
bool pack_strip(Dtype dtype, const MatrixLayout& matrix, const MatrixView& from, int strip,
                std::uint8_t* to) {
  const std::size_t size = from.type == FloatType::f32 ? 4 : 2;
  const void* rows[kStripOutputs];
  for (int n = 0; n < kStripOutputs; ++n) {
    const int row = strip * kStripOutputs + n;
    rows[n] =
        row < matrix.outputs ? static_cast<const char*>(from.data) + row * from.stride * size : nullptr;
  }
  std::memset(to, 0, matrix.scales_bytes);
  if (dtype == Dtype::int8) return pack_int8(rows, from.type, matrix, to);
  if (dtype == Dtype::int4) return pack_int4(rows, from.type, matrix, to);
  pack_bf16(rows, from.type, matrix, to);
  return true;
}

class PackMatrixJob : public Job {
 public:
  PackMatrixJob(Dtype dtype, const MatrixLayout& matrix, const MatrixView& from, std::uint8_t* to,
                std::atomic<int>* non_finite)
      : dtype_(dtype), matrix_(matrix), from_(from), to_(to), non_finite_(non_finite) {}

  int phases() const override { return 1; }
  int items(int) override { return matrix_.strips; }
  void run(int, int strip, int) override {
    if (!pack_strip(dtype_, matrix_, from_, strip, to_ + strip * matrix_.strip_bytes))
      non_finite_->store(1, std::memory_order_relaxed);
  }

 private:
  const Dtype dtype_;
  const MatrixLayout matrix_;
  const MatrixView from_;
  std::uint8_t* to_;
  std::atomic<int>* non_finite_;
};

class PackJob : public Job {
 public:
  PackJob(const ExpertLayout& layout, const MatrixView (&matrices)[3], std::uint8_t* block,
          std::atomic<int>* non_finite)
      : layout_(layout), block_(block), non_finite_(non_finite) {
    std::copy(matrices, matrices + 3, matrices_);
  }

  int phases() const override { return 1; }
  int items(int) override { return 2 * layout_.up.strips + layout_.down.strips; }

  void run(int, int item, int) override {
    const int ups = 2 * layout_.up.strips;
    if (item < ups) {
      const int strip = item / 2;
      pack(item % 2, layout_.up, strip,
           block_ + (item % 2 ? layout_.up_strip(strip) : layout_.gate_strip(strip)));
    } else {
      pack(2, layout_.down, item - ups, block_ + layout_.down_strip(item - ups));
    }
  }

 private:
  void pack(int which, const MatrixLayout& matrix, int strip, std::uint8_t* to) {
    if (!pack_strip(layout_.dtype, matrix, matrices_[which], strip, to))
      non_finite_->store(which + 1, std::memory_order_relaxed);
  }

  const ExpertLayout layout_;
  MatrixView matrices_[3];
  std::uint8_t* block_;
  std::atomic<int>* non_finite_;
};

float weight_at(Dtype dtype, const MatrixLayout& matrix, const std::uint8_t* strip, int n, int k) {
  const Format format = format_of(dtype);
  const std::uint8_t* tile = strip + matrix.scales_bytes + k / format.tile_inputs * format.tile_bytes;
  const int at = k % format.tile_inputs;
  if (dtype == Dtype::bf16) {
    std::uint16_t half;
    std::memcpy(&half, tile + (at / 2 * 16 + n) * 4 + at % 2 * 2, 2);
    return from_bf16(half);
  }
  std::uint16_t scale;
  std::memcpy(&scale, strip + (k / format.group * kStripOutputs + n) * 2, 2);
  if (dtype == Dtype::int8)
    return from_bf16(scale) * float(std::int8_t(tile[(at / 4 * 16 + n) * 4 + at % 4]));
  std::uint32_t word;
  std::memcpy(&word, tile + (at / 8 * 16 + n) * 4, 4);
  const int code = int(word >> (at % 8 / 2 * 4 + at % 2 * 16) & 15) - 8;
  return from_bf16(scale) * float(code);
}

}  // namespace

std::shared_ptr<Job> pack_job(const ExpertLayout& layout, const MatrixView (&matrices)[3],
                              std::uint8_t* block, std::atomic<int>* non_finite) {
  return std::make_shared<PackJob>(layout, matrices, block, non_finite);
}

std::shared_ptr<Job> pack_matrix_job(Dtype dtype, const MatrixLayout& matrix, const MatrixView& from,
                                     std::uint8_t* to, std::atomic<int>* non_finite) {
  return std::make_shared<PackMatrixJob>(dtype, matrix, from, to, non_finite);
}

void unpack_rows(Dtype dtype, const MatrixLayout& matrix, const std::uint8_t* from, int first, int count,
                 float* to) {
  for (int row = first; row < first + count; ++row) {
    const std::uint8_t* strip = from + row / kStripOutputs * matrix.strip_bytes;
    for (int k = 0; k < matrix.inputs; ++k)
      *to++ = weight_at(dtype, matrix, strip, row % kStripOutputs, k);
  }
}

void unpack(const ExpertLayout& layout, const std::uint8_t* block, float* gate, float* up, float* down) {
  const auto unpack_matrix = [&](const MatrixLayout& matrix, auto strip_at, float* to) {
    for (int row = 0; row < matrix.outputs; ++row) {
      const std::uint8_t* strip = block + strip_at(row / kStripOutputs);
      for (int k = 0; k < matrix.inputs; ++k)
        *to++ = weight_at(layout.dtype, matrix, strip, row % kStripOutputs, k);
    }
  };
  unpack_matrix(layout.up, [&](int s) { return layout.gate_strip(s); }, gate);
  unpack_matrix(layout.up, [&](int s) { return layout.up_strip(s); }, up);
  unpack_matrix(layout.down, [&](int s) { return layout.down_strip(s); }, down);
}

}  // namespace moesaic
