// Products in the compiler's vector extensions: weights are converted to fp32, then multiplied. Compiled for
// AVX2 and FMA; on other processors, where the portable build is asked for, for what the compiler assumes.
#include "products/elementwise.h"
#include "products/step_elementwise.h"

namespace moesaic {
namespace {

constexpr int kGroupTiles = format_of(Dtype::int8).group / 64;

inline U16 load_line(const std::uint8_t* from) {
  U16 v;
  std::memcpy(&v, from, 64);
  return v;
}

inline float bf16_at(const std::uint8_t* row, int i) {
  std::uint16_t half;
  std::memcpy(&half, row + 2 * i, 2);
  const std::uint32_t bits = std::uint32_t(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

template <int T>
void bf16_rows(const std::uint8_t* strip, const MatrixLayout& matrix, const std::uint8_t* tokens,
               int tile_tokens, float* c) {
  F16 sum[T] = {};
  for (int k = 0; k < matrix.tiles; ++k) {
    const std::uint8_t* row = tokens + std::size_t(k) * tile_tokens * kRowBytes;
    for (int p = 0; p < 16; ++p) {
      const U16 pair = load_line(strip + std::size_t(k) * kTileBytes + p * 64);
      __builtin_prefetch(strip + std::size_t(k) * kTileBytes + p * 64 + 2048);
      const F16 even = bits_to_f32(pair << 16), odd = bits_to_f32(pair & 0xffff0000u);
      for (int t = 0; t < T; ++t)
        sum[t] += even * bf16_at(row + t * kRowBytes, 2 * p) + odd * bf16_at(row + t * kRowBytes, 2 * p + 1);
    }
  }
  for (int t = 0; t < T; ++t) store_f32(c + t * 16, sum[t]);
}

template <int T>
void int8_rows(const std::uint8_t* strip, const MatrixLayout& matrix, const std::uint8_t* tokens,
               int tile_tokens, const float* scales, int groups, float* c) {
  const std::uint8_t* codes = strip + matrix.scales_bytes;
  F16 sum[T] = {};
  for (int g = 0; g < groups; ++g) {
    F16 part[T] = {};  // exact: 256 products of 127 squared stay below 2^24
    for (int k = g * kGroupTiles; k < (g + 1) * kGroupTiles && k < matrix.tiles; ++k) {
      const std::uint8_t* row = tokens + std::size_t(k) * tile_tokens * kRowBytes;
      for (int p = 0; p < 16; ++p) {
        const I16 quad = (I16)load_line(codes + std::size_t(k) * kTileBytes + p * 64);
        __builtin_prefetch(codes + std::size_t(k) * kTileBytes + p * 64 + 2048);
        const F16 w0 = __builtin_convertvector((quad << 24) >> 24, F16);
        const F16 w1 = __builtin_convertvector((quad << 16) >> 24, F16);
        const F16 w2 = __builtin_convertvector((quad << 8) >> 24, F16);
        const F16 w3 = __builtin_convertvector(quad >> 24, F16);
        for (int t = 0; t < T; ++t) {
          const std::int8_t* x = (const std::int8_t*)row + t * kRowBytes + 4 * p;
          part[t] += (w0 * float(x[0]) + w1 * float(x[1])) + (w2 * float(x[2]) + w3 * float(x[3]));
        }
      }
    }
    const F16 scale = load_bf16(strip + g * 32);
    for (int t = 0; t < T; ++t) sum[t] += part[t] * (scale * scales[t * groups + g]);
  }
  for (int t = 0; t < T; ++t) store_f32(c + t * 16, sum[t]);
}

template <int T>
void int4_rows(const std::uint8_t* strip, const MatrixLayout& matrix, const std::uint8_t* tokens,
               int tile_tokens, float* c) {
  const std::uint8_t* codes = strip + matrix.scales_bytes;
  F16 sum[T] = {};
  for (int k = 0; k < matrix.tiles; ++k) {
    const std::uint8_t* row = tokens + std::size_t(k) * tile_tokens * kRowBytes;
    F16 part[T] = {};
    for (int r = 0; r < 4; ++r) {
      const U16 eight = load_line(codes + std::size_t(k) * 256 + r * 64);
      __builtin_prefetch(codes + std::size_t(k) * 256 + r * 64 + 2048);
      for (int j = 0; j < 4; ++j) {
        const F16 even = __builtin_convertvector((I16)((eight >> (4 * j)) & 15u) - 8, F16);
        const F16 odd = __builtin_convertvector((I16)((eight >> (16 + 4 * j)) & 15u) - 8, F16);
        for (int t = 0; t < T; ++t)
          part[t] += even * bf16_at(row + t * kRowBytes, 8 * r + 2 * j) +
                     odd * bf16_at(row + t * kRowBytes, 8 * r + 2 * j + 1);
      }
    }
    const F16 scale = load_bf16(strip + k * 32);
    for (int t = 0; t < T; ++t) sum[t] += part[t] * scale;
  }
  for (int t = 0; t < T; ++t) store_f32(c + t * 16, sum[t]);
}

template <int T>
void rows(Dtype dtype, const std::uint8_t* strip, const MatrixLayout& matrix, const Panel& panel, int token,
          float* c) {
  const int tile = token / kTileTokens, at = token % kTileTokens;
  const std::uint8_t* tokens = panel.tile(tile) + at * kRowBytes;
  const int stride = panel.tile_tokens(tile);
  if (dtype == Dtype::int8)
    int8_rows<T>(strip, matrix, tokens, stride, panel.scales + token * panel.groups, panel.groups, c);
  else if (dtype == Dtype::int4)
    int4_rows<T>(strip, matrix, tokens, stride, c);
  else
    bf16_rows<T>(strip, matrix, tokens, stride, c);
}

template <Dtype dtype>
void product(const std::uint8_t* const* strips, int count, const MatrixLayout& matrix, const Panel& panel,
             float* c, std::uint8_t*) {
  for (int s = 0; s < count; ++s) {
    float* to = c + std::size_t(s) * panel.tokens * 16;
    int token = 0;
    while (token < panel.tokens) {
      const int left = panel.tile_tokens(token / kTileTokens) - token % kTileTokens;
      if (left >= 2) {
        rows<2>(dtype, strips[s], matrix, panel, token, to + token * 16);
        token += 2;
      } else {
        rows<1>(dtype, strips[s], matrix, panel, token, to + token * 16);
        token += 1;
      }
    }
  }
}

const Kernels table = {
#if defined(__AVX2__)
    "avx2",
#else
    "portable",
#endif
    {product<Dtype::bf16>, product<Dtype::int8>, product<Dtype::int4>},
    {nullptr, nullptr, nullptr},
    fill_bf16,
    fill_int8,
    fill_bf16,
    activate,
    activate_bf16,
    scatter_add,
    narrow,
    rms_norm,
    router_scores,
    &step_kernels,
    nullptr,
};

}  // namespace

const Kernels* vector_kernels() { return &table; }

void read_memory_vectors(const std::uint8_t* from, std::size_t bytes, bool multi_stream) {
  U16 all = {};
  const int streams = multi_stream ? 4 : 1;
  const std::size_t each = bytes / streams / 64 * 64;
  for (std::size_t at = 0; at < each; at += 64)
    for (int i = 0; i < streams; ++i) {
      __builtin_prefetch(from + i * each + at + 4096 + (at + 4096 < each ? 0 : bytes - each));
      all ^= load_line(from + i * each + at);
    }
  volatile std::uint32_t seen = all[0];
  (void)seen;
}

}  // namespace moesaic
