// The table of kernels for CPUs with AVX-512 and its bf16 and byte dot products.
#include "products/avx512_vectors_table.h"

namespace moesaic {
namespace {

inline void prefetch(const std::uint8_t* at) { _mm_prefetch((const char*)at + kAheadBytes, _MM_HINT_T0); }
inline __m512i line(const std::uint8_t* at) { return _mm512_loadu_si512(at); }

// Row by row in memory order: one read stream, which the hardware prefetcher follows.
void router_scores_fast(const void* x, const void* matrix, FloatType type, int rows, int count,
                        float* scores) {
  if (type != FloatType::bf16 || count % 128) return router_scores(x, matrix, type, rows, count, scores);
  const auto* from = static_cast<const std::uint8_t*>(matrix);
  const auto* token = static_cast<const std::uint8_t*>(x);
  const std::size_t row_bytes = std::size_t(count) * 2;
  for (int row = 0; row < rows; ++row, from += row_bytes) {
    __m512 sum[4] = {};
    for (std::size_t at = 0; at < row_bytes; at += 256) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        prefetch(from + at + i * 64);
        sum[i] =
            _mm512_dpbf16_ps(sum[i], (__m512bh)line(from + at + i * 64), (__m512bh)line(token + at + i * 64));
      }
    }
    scores[row] =
        _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3])));
  }
}

constinit const Kernels table = [] {
  Kernels kernels = avx512_vectors_table("avx512");
  kernels.router_scores = router_scores_fast;
  return kernels;
}();

}  // namespace

const Kernels* avx512_kernels() { return &table; }

}  // namespace moesaic
