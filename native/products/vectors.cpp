// Kernels for AVX2 and FMA; on other processors, where the portable build is asked for, for what the compiler
// assumes.
#include "products/vectors_table.h"

namespace moesaic {
namespace {

const Kernels table = vectors_table(kVectorBytes == 32 ? "avx2" : "portable");

}  // namespace

const Kernels* vector_kernels() { return &table; }

void read_memory_vectors(const std::uint8_t* from, std::size_t bytes, bool multi_stream) {
  Words all = {};
  const int streams = multi_stream ? 4 : 1;
  const std::size_t each = bytes / streams / kRowBytes * kRowBytes;
  for (std::size_t at = 0; at < each; at += kRowBytes)
    for (int i = 0; i < streams; ++i) {
      const std::uint8_t* line = from + i * each + at;
      __builtin_prefetch(line + kAheadBytes + (at + kAheadBytes < each ? 0 : bytes - each));
      for (int c = 0; c < kColumns; ++c) all ^= load(line + c * kVectorBytes);
    }
  volatile std::uint32_t seen = all[0];
  (void)seen;
}

}  // namespace moesaic
