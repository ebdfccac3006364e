// Vectors of the KV cache in int8: codes in [-127, 127] and one scale in fp16, the smallest with which no code is
// beyond them. models/attentions/kv_codes.py computes the same bits. Internal linkage, as in elementwise.h.
#pragma once

#include "products/elementwise.h"

namespace moesaic {
namespace {

constexpr float kTopCacheCode = 127.0f;

// At least `wanted`, which is not negative; infinite beyond what fp16 has.
inline std::uint16_t scale_above(float wanted) {
  const _Float16 nearest = _Float16(wanted);
  std::uint16_t bits;
  std::memcpy(&bits, &nearest, 2);
  return float(nearest) < wanted ? std::uint16_t(bits + 1) : bits;
}

// Writes the codes of a bf16 vector and returns its scale. Where a value is not finite, the scale is NaN, and where
// all together are too large for fp16, it is infinite: codes are zeros then, and products with the scale NaN.
std::uint16_t round_codes(const std::uint16_t* from, int width, std::int8_t* to) {
  F16 top = {}, zero = {};
  for (int i = 0; i < width; i += 16) {
    const F16 v = load_values(from, FloatType::bf16, i, width);
    top = larger(top, larger(v, -v));
    zero += v * 0.0f;
  }
  float largest = 0, poison = 0;  // poison: 0, or NaN
  for (int i = 0; i < 16; ++i) {
    largest = top[i] > largest ? top[i] : largest;
    poison += zero[i];
  }
  constexpr std::uint16_t kInfinity = 0x7c00, kNan = 0x7e00;
  const std::uint16_t scale = poison == 0.0f ? scale_above(largest / kTopCacheCode) : kNan;
  if (scale == 0 || scale >= kInfinity) {
    std::memset(to, 0, width);
    return scale;
  }
  const F16 divisor = splat(half_to_float(scale)), shifter = splat(12582912.0f);  // 1.5 * 2^23: as in rounded_codes
  for (int i = 0; i < width; i += 16) {
    const F16 v = load_values(from, FloatType::bf16, i, width) / divisor;
    const I16 codes = (I16)(f32_to_bits(v + shifter) - 0x4b400000u);
    const B16 bytes = __builtin_convertvector(codes, B16);
    std::memcpy(to + i, &bytes, width - i < 16 ? width - i : 16);
  }
  return scale;
}

typedef std::int8_t SomeBytes __attribute__((vector_size(kLanes)));

// As many codes as a vector has numbers. Compilers convert vectors of bytes element by element.
[[gnu::always_inline]] inline Floats widened_codes(const std::int8_t* from) {
#if defined(__AVX512BW__)
  return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)load<SomeBytes>(from)));
#elif defined(__AVX2__)
  return (Floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
  return __builtin_convertvector(__builtin_convertvector(load<SomeBytes>(from), Ints), Floats);
#endif
}

// Codes as bf16 numbers, which have all of them. `width` is a multiple of 16.
void widen_codes(const std::int8_t* from, int width, std::uint16_t* to) {
  for (int i = 0; i < width; i += kLanes)
    store(__builtin_convertvector((Words)widened_codes(from + i) >> 16, Halves), to + i);
}

// `count` scales that are `stride` apart.
inline void widen_scales(const std::uint16_t* from, std::size_t stride, int count, float* to) {
  for (int i = 0; i < count; ++i) to[i] = half_to_float(from[i * stride]);
}

}  // namespace
}  // namespace moesaic
