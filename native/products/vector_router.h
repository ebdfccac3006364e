// Router logits of one token in vectors, bf16 widened to fp32. Internal linkage, as in elementwise.h.
#pragma once

#include "products/elementwise.h"
#include "products/lanes.h"

namespace moesaic {
namespace {

inline float lane_sum(Floats v) {
  float sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += v[i];
  return sum;
}

// Four rows at a time: four read streams, which share the token's vectors.
void router_scores_vectors(const void* x, const void* matrix, FloatType type, int rows, int count,
                           float* scores) {
  const std::size_t row_bytes = std::size_t(count) * 2;
  if (type != FloatType::bf16 || row_bytes % kVectorBytes)
    return router_scores(x, matrix, type, rows, count, scores);
  const auto *token = static_cast<const std::uint8_t*>(x), *from = static_cast<const std::uint8_t*>(matrix);
  for (int first = 0; first < rows; first += 4) {
    const std::uint8_t* row[4];
    for (int r = 0; r < 4; ++r) row[r] = from + (first + r < rows ? first + r : first) * row_bytes;
    Floats low[4] = {}, high[4] = {};
    for (std::size_t at = 0; at < row_bytes; at += kVectorBytes) {
      const Words pairs = load(token + at);
      const Floats even = low_bf16(pairs), odd = high_bf16(pairs);
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        if (at % kRowBytes == 0) prefetch_line(std::uintptr_t(row[r]) + 4 * row_bytes + at);
        const Words w = load(row[r] + at);
        low[r] = multiply_add(low_bf16(w), even, low[r]);
        high[r] = multiply_add(high_bf16(w), odd, high[r]);
      }
    }
    for (int r = 0; r < 4 && first + r < rows; ++r) scores[first + r] = lane_sum(low[r] + high[r]);
  }
}

}  // namespace
}  // namespace moesaic
