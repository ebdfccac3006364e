// Kernels for AVX-512 without dot products, and the loop that measures memory bandwidth.
#include "products/avx512_vectors_table.h"

namespace moesaic {
namespace {

const Kernels table = avx512_vectors_table("avx512-base");

template <int Streams>
void read_streams(const std::uint8_t* from, std::size_t bytes) {
  __m512i all[4] = {};
  constexpr int kLines = 4 / Streams;  // consecutive lines of each stream
  const std::size_t each = bytes / Streams / (kLines * 64) * (kLines * 64);
  for (std::size_t at = 0; at < each; at += kLines * 64)
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const std::uint8_t* line_at = from + i / kLines * each + at + i % kLines * 64;
      const std::size_t past = at + kAheadBytes < each ? 0 : bytes - each;  // at the end: in the next block
      _mm_prefetch((const char*)line_at + kAheadBytes + past, _MM_HINT_T0);
      all[i] = _mm512_xor_si512(all[i], _mm512_loadu_si512(line_at));
    }
  const __m512i one = _mm512_xor_si512(_mm512_xor_si512(all[0], all[1]), _mm512_xor_si512(all[2], all[3]));
  volatile int seen = _mm512_cvtsi512_si32(one);
  (void)seen;
}

}  // namespace

const Kernels* avx512_base_kernels() { return &table; }

void read_memory_avx512(const std::uint8_t* from, std::size_t bytes, bool multi_stream) {
  (multi_stream ? read_streams<4> : read_streams<1>)(from, bytes);
}

}  // namespace moesaic
