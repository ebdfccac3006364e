// Products of any number of tokens with one packed matrix: projections and the output head.
#pragma once

#include <mutex>

#include "layer/runner.h"
#include "layer/workspace.h"
#include "linear/packed_matrix.h"
#include "pool/pool.h"

namespace moesaic {

struct LinearCall {
  const void* x = nullptr;  // [tokens, inputs], rows `stride` values apart
  FloatType type = FloatType::bf16;
  std::size_t stride = 0;
  int tokens = 0;
  const void* bias = nullptr;  // [outputs] in `type`, or null
  void* out = nullptr;         // [tokens, outputs] in `type`, contiguous
};

// Multiplies on one pool, one call at a time, and owns a workspace.
class LinearRunner {
 public:
  LinearRunner(std::shared_ptr<Pool> pool, Isa isa, int tiles_from_bf16, int tiles_from_int8,
               int tiles_from_int4);

  void pack(const MatrixView& from, const PackedMatrix& to);
  // Thread-safe: calls take turns. Throws InvalidCall for what would access memory out of bounds.
  void run(const PackedMatrix& matrix, const LinearCall& call);

 private:
  std::mutex mutex_;
  std::shared_ptr<Pool> pool_;
  Multiplier multiplier_;
  Workspace workspace_;
};

}  // namespace moesaic
