// The table of kernels for CPUs with AVX-512, with the dot products that the source file's flags allow.
// Internal linkage, as in elementwise.h.
#pragma once

#include "products/avx512_elementwise.h"
#include "products/vectors_table.h"

namespace moesaic {
namespace {

constexpr Kernels avx512_vectors_table(const char* name) {
  Kernels table = vectors_table(name);
  table.fill_bf16 = fill_bf16_fast;
  table.fill_int8 = fill_int8_fast;
  table.fill_int16 = fill_int4_fast<false>;
  table.fill_many_int4 = fill_int4_fast<true>;
  table.activate = activate_fast;
  table.activate_bf16 = activate_bf16_fast;
  return table;
}

}  // namespace
}  // namespace moesaic
