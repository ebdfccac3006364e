// The table of kernels in vectors, for what a source file is compiled for below AVX-512. Internal linkage, as
// in elementwise.h.
#pragma once

#if defined(__AVX2__) && !defined(__AVX512BW__)
#include "products/avx2_fill.h"
#endif
#include "products/attention_elementwise.h"
#include "products/elementwise.h"
#include "products/step_elementwise.h"
#include "products/vector_products.h"
#include "products/vector_router.h"

namespace moesaic {
namespace {

#if defined(__AVX2__) && !defined(__AVX512BW__)
constexpr FillPanel kFillInt8 = fill_int8_avx2, kFillInt16 = fill_int4_avx2<false>;
constexpr FillPanel kFillBytes = fill_int4_avx2<true>;
#else
constexpr FillPanel kFillInt8 = fill_int8, kFillInt16 = fill_int4<false>, kFillBytes = fill_int4<true>;
#endif

constexpr Kernels vectors_table(const char* name) {
  return {
      name,
      {product<Dtype::bf16>, product<Dtype::int8>, product<Dtype::int4>},
      {nullptr, nullptr, product<Dtype::int4, true>},
      fill_bf16,
      kFillInt8,
      kFillInt16,
      kFillBytes,
      activate,
      activate_bf16,
      scatter_add,
      narrow,
      rms_norm,
      router_scores_vectors,
      &step_kernels,
      &attention_kernels,
      nullptr,
  };
}

}  // namespace
}  // namespace moesaic
