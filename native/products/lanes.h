// Vectors of the width that the instruction set of a source file has, and the operations that differ between
// instruction sets. A line of weights is kColumns of these vectors. Internal linkage, as in elementwise.h.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>

#include "layout/expert_layout.h"

namespace moesaic {
namespace {

#if defined(__AVX512BW__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int kLanes = kVectorBytes / 4;
constexpr int kColumns = kRowBytes / kVectorBytes;

typedef float Floats __attribute__((vector_size(kVectorBytes)));
typedef std::int32_t Ints __attribute__((vector_size(kVectorBytes)));
typedef std::uint32_t Words __attribute__((vector_size(kVectorBytes)));
typedef std::int16_t Shorts __attribute__((vector_size(kVectorBytes)));
typedef std::uint16_t Halves __attribute__((vector_size(kVectorBytes / 2)));

template <typename Vector = Words>
inline Vector load(const void* from) {
  Vector v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
template <typename Vector>
inline void store(Vector v, void* to) {
  std::memcpy(to, &v, sizeof v);
}
inline Words broadcast(const void* from) {
  std::uint32_t word;
  std::memcpy(&word, from, sizeof word);
  return Words{} + word;
}
inline void prefetch_line(std::uintptr_t at) { __builtin_prefetch(reinterpret_cast<const void*>(at)); }

// Keeps the compiler from reordering a sum of integers, for which it would need more registers than there are.
template <typename Vector>
[[maybe_unused, gnu::always_inline]] inline Vector in_order(Vector sum) {
#if defined(__x86_64__)
  __asm__("" : "+v"(sum));
#endif
  return sum;
}

// The same address, as one that the compiler does not know: it does not keep what it loaded from there.
[[gnu::always_inline]] inline const std::uint8_t* unrelated(const std::uint8_t* at) {
  __asm__("" : "+r"(at));
  return at;
}

// Words of two bf16 numbers, as fp32.
inline Floats low_bf16(Words pairs) { return (Floats)(pairs << 16); }
inline Floats high_bf16(Words pairs) { return (Floats)(pairs & 0xffff0000u); }
inline Floats widened_bf16(const void* from) {
#if defined(__AVX512BW__)
  return (Floats)((Words)_mm512_cvtepu16_epi32((__m256i)load<Halves>(from)) << 16);
#elif defined(__AVX2__)
  return (Floats)((Words)_mm256_cvtepu16_epi32((__m128i)load<Halves>(from)) << 16);
#else
  return (Floats)(__builtin_convertvector(load<Halves>(from), Words) << 16);
#endif
}

// The same rounding wherever it is used: always fused on x86.
inline Floats multiply_add(Floats a, Floats b, Floats sum) {
#if defined(__AVX512BW__)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(__AVX2__)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#else
  return a * b + sum;
#endif
}

// Of every word: the sum of the products of two signed 16-bit numbers.
inline Ints pair_products(Words a, Words b) {
#if defined(__AVX512BW__)
  return (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
  return ((Ints)(a << 16) >> 16) * ((Ints)(b << 16) >> 16) + ((Ints)a >> 16) * ((Ints)b >> 16);
#endif
}

// Of every word: the products of two bf16 numbers each, added to `sum`.
#if defined(__AVX512BF16__)
constexpr bool kBf16Dots = true;
inline Floats bf16_dots(Floats sum, Words a, Words b) {
  return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}
#else
constexpr bool kBf16Dots = false;
[[maybe_unused]] inline Floats bf16_dots(Floats sum, Words a, Words b) {
  return multiply_add(high_bf16(a), high_bf16(b), multiply_add(low_bf16(a), low_bf16(b), sum));
}
#endif

// Of every word: the products of four unsigned bytes of `a` with four signed ones of `b`, added to `sum`.
#if defined(__AVX512VNNI__)
constexpr bool kByteDots = true;
inline Ints byte_dots(Ints sum, Words a, Words b) {
  return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
}
#elif defined(__AVXVNNI__)
constexpr bool kByteDots = true;
inline Ints byte_dots(Ints sum, Words a, Words b) {
  return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
}
#else
constexpr bool kByteDots = kVectorBytes == 16;  // elsewhere: pairs, below
[[maybe_unused]] inline Ints byte_dots(Ints sum, Words a, Words b) {
  for (int shift = 0; shift < 32; shift += 8)
    sum += (Ints)(a >> shift & 255u) * ((Ints)(b << (24 - shift)) >> 24);
  return sum;
}
#endif

// The products of two unsigned bytes of `a` with two signed ones of `b`, as 16-bit sums that must be in range.
[[maybe_unused]] inline Shorts byte_pairs(Words a, Words b) {
#if defined(__AVX512BW__)
  return (Shorts)_mm512_maddubs_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (Shorts)_mm256_maddubs_epi16((__m256i)a, (__m256i)b);
#else
  const Shorts even = (Shorts)(b << 8) >> 8, odd = (Shorts)b >> 8;
  return (Shorts)(a & 0x00ff00ffu) * even + (Shorts)(a >> 8 & 0x00ff00ffu) * odd;
#endif
}

}  // namespace
}  // namespace moesaic
