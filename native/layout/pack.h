// Packs an expert's matrices into a block, and unpacks them.
#pragma once

#include <memory>

#include "pool/pool.h"
#include "products/kernels.h"

namespace moesaic {

// One matrix as in a checkpoint: [outputs, inputs], row-major.
struct MatrixView {
  const void* data;
  FloatType type;
  std::size_t stride;  // values from row to row
};

// Packs one expert. `non_finite` is set to 1 + the index of a matrix (gate, up, down) that cannot be
// quantised because it has infinities or NaN.
std::shared_ptr<Job> pack_job(const ExpertLayout& layout, const MatrixView (&matrices)[3],
                              std::uint8_t* block, std::atomic<int>* non_finite);

// The weights of a block in fp32, row-major.
void unpack(const ExpertLayout& layout, const std::uint8_t* block, float* gate, float* up, float* down);

}  // namespace moesaic
