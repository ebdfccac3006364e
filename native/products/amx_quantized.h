// Products of int8 and int4 weights in AMX tiles.
#pragma once

#include "products/kernels.h"

namespace moesaic {

void int8_tiles_product(const std::uint8_t* const* strips, int count, const MatrixLayout& matrix,
                        const Panel& panel, float* c, std::uint8_t* scratch);
void int4_tiles_product(const std::uint8_t* const* strips, int count, const MatrixLayout& matrix,
                        const Panel& panel, float* c, std::uint8_t* scratch);

}  // namespace moesaic
