// Packs an expert's matrices into a block, and unpacks them.
#pragma once

#include <atomic>
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

// Packs one matrix, strip after strip. `non_finite` as above, 0 or 1.
std::shared_ptr<Job> pack_matrix_job(Dtype dtype, const MatrixLayout& matrix, const MatrixView& from,
                                     std::uint8_t* to, std::atomic<int>* non_finite);

// Rows of a packed matrix in fp32, row-major.
void unpack_rows(Dtype dtype, const MatrixLayout& matrix, const std::uint8_t* from, int first, int count,
                 float* to);

// The weights of a block in fp32, row-major.
void unpack(const ExpertLayout& layout, const std::uint8_t* block, float* gate, float* up, float* down);

}  // namespace moesaic
