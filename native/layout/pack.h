// From rows of weights to strips and back.
#pragma once

#include <memory>

#include "products/kernels.h"
#include "pool/pool.h"

namespace moesaic {

// One matrix as checkpoints have it: [outputs, inputs], row after row.
struct Matrix {
  const void* data;
  Value value;
  std::size_t stride;  // values from row to row
};

// Packs one expert; `damaged` becomes 1 + the index of a matrix (gate, up, down) that has weights
// which no scale can express.
std::shared_ptr<Work> pack_work(const ExpertLayout& layout, const Matrix (&matrices)[3],
                                std::uint8_t* block, std::atomic<int>* damaged);

// The weights a block stands for, fp32, row after row.
void unpack(const ExpertLayout& layout, const std::uint8_t* block, float* gate, float* up, float* down);

}  // namespace moesaic
