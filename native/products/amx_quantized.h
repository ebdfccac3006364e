// Products of int8 and int4 weights in AMX tiles.
#pragma once

#include "products/kernels.h"

namespace moesaic {

void int8_tiles_product(const std::uint8_t* const* strips, int count, const MatrixLayout& matrix,
                        const Panel& panel, float* c, std::uint8_t* scratch);
void int4_tiles_product(const std::uint8_t* const* strips, int count, const MatrixLayout& matrix,
                        const Panel& panel, float* c, std::uint8_t* scratch);

// How int4 products apply scales, for benchmarks, which compare: to the weights with more than one token tile,
// the same rounded to nearest, or to the weights with any number of tokens.
enum class Int4Weights : int { scaled, rounded, always_scaled };
void override_int4_weights(Int4Weights weights);

}  // namespace moesaic
