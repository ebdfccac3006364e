// Products of any number of tokens with packed matrices that have the same inputs: projections and the
// output head.
#pragma once

#include <mutex>
#include <vector>

#include "layer/runner.h"
#include "layer/workspace.h"
#include "linear/packed_matrix.h"
#include "pool/pool.h"

namespace moesaic {

struct LinearProduct {
  PackedMatrix matrix;
  const void* bias = nullptr;  // [outputs] in the call's type, or null
  void* out = nullptr;         // [tokens, outputs] in the call's type, contiguous
};

struct LinearCall {
  const void* x = nullptr;  // [tokens, inputs], rows `stride` values apart
  FloatType type = FloatType::bf16;
  std::size_t stride = 0;
  int tokens = 0;
};

// How products of many tokens are cut: a chunk's inputs are so many bytes, at most (or 64 tokens), and a
// worker multiplies them with so many strips at once, at most.
struct LinearBlocking {
  std::size_t panel_bytes = 1u << 20;  // half of the L2 cache: there they stay from item to item
  int strips = 8;                      // their sums stay in a cache, too
};

// Multiplies on one pool, one call at a time, and owns a workspace.
class LinearRunner {
 public:
  LinearRunner(std::shared_ptr<Pool> pool, Isa isa, int tiles_from_bf16, int tiles_from_int8,
               int tiles_from_int4, LinearBlocking blocking = {});

  void pack(const MatrixView& from, const PackedMatrix& to);
  // All matrices have one precision and the same number of inputs, which are prepared once. Thread-safe:
  // calls take turns. Throws InvalidCall for what would access memory out of bounds.
  void run(const LinearCall& call, const std::vector<LinearProduct>& products);

 private:
  std::mutex mutex_;
  std::shared_ptr<Pool> pool_;
  Multiplier multiplier_;
  LinearBlocking blocking_;
  Workspace workspace_;
};

}  // namespace moesaic
