// Products of int8 and int4 weights in AMX tiles.
#pragma once

#include "products/kernels.h"

namespace moesaic {

void int8_tiles_product(const std::uint8_t* const* strips, int count, const MatrixLayout& matrix,
                        const Panel& panel, float* c, std::uint8_t* scratch);
void int4_tiles_product(const std::uint8_t* const* strips, int count, const MatrixLayout& matrix,
                        const Panel& panel, float* c, std::uint8_t* scratch);

// Which int4 product of more than one token tile is used: for benchmarks, which compare them.
enum class Int4Weights : int { scaled, rounded };
void override_int4_weights(Int4Weights weights);

}  // namespace moesaic
