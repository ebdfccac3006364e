// Kernels for AVX-512 with byte dot products (VNNI), without those of bf16.
#include "products/avx512_vectors_table.h"

namespace moesaic {
namespace {

const Kernels table = avx512_vectors_table("avx512-vnni");

}  // namespace

const Kernels* avx512_vnni_kernels() { return &table; }

}  // namespace moesaic
