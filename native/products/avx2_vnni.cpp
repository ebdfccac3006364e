// Kernels for AVX2 with the byte dot products of AVX-VNNI.
#include "products/vectors_table.h"

namespace moesaic {
namespace {

const Kernels table = vectors_table("avx2-vnni");

}  // namespace

const Kernels* avx2_vnni_kernels() { return &table; }

}  // namespace moesaic
