#pragma once

#include "kernels.h"

namespace moesaic {

// A `Product` of int8 codes, by tiles.
void int8_tiles_product(const std::uint8_t* const* strips, int count, const MatrixLayout& matrix,
                        const Panel& panel, float* c, std::uint8_t* scratch);

}  // namespace moesaic
