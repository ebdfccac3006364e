// Reference results in plain double loops, and bounds on a kernel's rounding errors.
//
// Every rounding step and its largest error is known. Errors are independent, so their squares are propagated
// through the expert and added; three times the root of the sum is more than five standard deviations of
// uniformly distributed errors.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "products/kernels.h"

using moesaic::Activation;
using moesaic::Dtype;

// Largest relative errors of rounding to bf16 and fp16; of sums in fp32.
constexpr double kBf16 = 1.0 / 256, kFp16 = 1.0 / 2048, kSum = 1e-6;

struct Weights {  // as unpacked from a block
  std::vector<float> gate, up, down;
};

// Precision in which a kernel keeps its operands.
struct Rounding {
  Dtype dtype;
  bool codes16;       // int4 in vectors: activations are 16-bit codes
  bool bf16_weights;  // int4 in tiles: weights are rounded once more
  bool bytes;         // int4 in vectors, many tokens: activations are bytes

  // Of a product in an instruction set with tiles or without; `many`: tokens.
  static Rounding of(Dtype dtype, bool has_tiles, bool many) {
    const bool int4 = dtype == Dtype::int4;
    return {dtype, int4 && !many, int4 && many && has_tiles, int4 && many && !has_tiles};
  }

  // Squared errors of one row of activations.
  std::vector<double> squares(const std::vector<double>& row) const {
    std::vector<double> errors(row.size());
    const int group = dtype == Dtype::int8 ? 256 : codes16 || bytes ? 32 : 1;
    const double step = dtype == Dtype::int8 || bytes ? 1.0 / 254 : codes16 ? 1.0 / 65024 : kBf16;
    for (std::size_t from = 0; from < row.size(); from += group) {
      const std::size_t to = std::min(row.size(), from + group);
      double largest = 0;
      for (std::size_t i = from; i < to; ++i) largest = std::max(largest, std::fabs(row[i]));
      for (std::size_t i = from; i < to; ++i) errors[i] = std::pow(step * largest, 2);
    }
    return errors;
  }
};

inline double activated(Activation kind, double x) {
  switch (kind) {
    case Activation::gelu: return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    default: return x / (1 + std::exp(-x));
  }
}

struct Estimate {
  double value = 0, square = 0;  // and its squared error
};

// Dot product of a matrix row and x, with the given squared errors of x.
inline Estimate product(const float* row, const std::vector<double>& x, const std::vector<double>& errors,
                        const Rounding& rounding) {
  Estimate sum;
  const double own = kSum * kSum + (rounding.bf16_weights ? kBf16 * kBf16 : 0.0);
  for (std::size_t j = 0; j < x.size(); ++j) {
    const double w = row[j];
    sum.value += w * x[j];
    sum.square += w * w * (errors[j] + own * x[j] * x[j]);
  }
  return sum;
}

inline std::vector<Estimate> expert(const Weights& weights, const std::vector<double>& x, int intermediate,
                                    Activation kind, const Rounding& rounding) {
  constexpr double kSteepest = 1.13;  // slope of any activation
  const std::size_t hidden = x.size();
  const std::vector<double> errors = rounding.squares(x);
  std::vector<double> inner(intermediate), inner_errors(intermediate);
  for (int i = 0; i < intermediate; ++i) {
    const Estimate gate = product(&weights.gate[i * hidden], x, errors, rounding);
    const Estimate up = product(&weights.up[i * hidden], x, errors, rounding);
    const double act = activated(kind, gate.value), slope = kSteepest * kSteepest * gate.square;
    inner[i] = act * up.value;
    inner_errors[i] =
        slope * (up.value * up.value + up.square) + act * act * up.square + std::pow(kSum * inner[i], 2);
  }
  const std::vector<double> rounded = rounding.squares(inner);
  for (int i = 0; i < intermediate; ++i) inner_errors[i] += rounded[i];
  std::vector<Estimate> out(hidden);
  for (std::size_t h = 0; h < hidden; ++h)
    out[h] = product(&weights.down[h * intermediate], inner, inner_errors, rounding);
  return out;
}
