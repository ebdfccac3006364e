// The arithmetic peak of the processor's units: loops on registers alone. Each function is compiled for its
// own instructions; `peaks` lists those that this processor has.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <chrono>
#include <string>

#include "products/cpu_features.h"
#include "products/roofline.h"

namespace moesaic {
namespace {

#if defined(__x86_64__)

constexpr int kLoops = 4096, kSums = 12;  // sums: enough to hide the latency of two units
constexpr double kSumOps = double(kLoops) * kSums;

// Unknown to the compiler, small, and not zero: multiplying zeros takes less power, and so less time.
volatile float factor = 0.9375f, addend = 0.0625f;
volatile std::uint32_t pattern = 0x3e11be23u;  // two bf16 numbers or four int8 codes
volatile float used;

__attribute__((target("avx2,fma"))) void fp32_avx2() {
  const __m256 x = _mm256_set1_ps(factor), y = _mm256_set1_ps(addend);
  __m256 sum[kSums];
  for (__m256& one : sum) one = y;
  for (int i = 0; i < kLoops; ++i)
#pragma GCC unroll 12
    for (int s = 0; s < kSums; ++s) sum[s] = _mm256_fmadd_ps(sum[s], x, y);
  for (int s = 1; s < kSums; ++s) sum[0] = _mm256_add_ps(sum[0], sum[s]);
  used = _mm256_cvtss_f32(sum[0]);
}

__attribute__((target("avx512f"))) void fp32_avx512() {
  const __m512 x = _mm512_set1_ps(factor), y = _mm512_set1_ps(addend);
  __m512 sum[kSums];
  for (__m512& one : sum) one = y;
  for (int i = 0; i < kLoops; ++i)
#pragma GCC unroll 12
    for (int s = 0; s < kSums; ++s) sum[s] = _mm512_fmadd_ps(sum[s], x, y);
  for (int s = 1; s < kSums; ++s) sum[0] = _mm512_add_ps(sum[0], sum[s]);
  used = _mm512_cvtss_f32(sum[0]);
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) void bf16_avx512() {
  const __m512bh x = (__m512bh)_mm512_set1_epi32(int(pattern)), y = (__m512bh)_mm512_set1_epi32(int(pattern));
  __m512 sum[kSums];
  for (__m512& one : sum) one = _mm512_setzero_ps();
  for (int i = 0; i < kLoops; ++i)
#pragma GCC unroll 12
    for (int s = 0; s < kSums; ++s) sum[s] = _mm512_dpbf16_ps(sum[s], x, y);
  for (int s = 1; s < kSums; ++s) sum[0] = _mm512_add_ps(sum[0], sum[s]);
  used = _mm512_cvtss_f32(sum[0]);
}

__attribute__((target("avx512f,avx512vnni"))) void int8_avx512() {
  const __m512i x = _mm512_set1_epi32(int(pattern)), y = _mm512_set1_epi32(int(pattern));
  __m512i sum[kSums];
  for (__m512i& one : sum) one = _mm512_setzero_si512();
  for (int i = 0; i < kLoops; ++i)
#pragma GCC unroll 12
    for (int s = 0; s < kSums; ++s) sum[s] = _mm512_dpbusd_epi32(sum[s], x, y);
  for (int s = 1; s < kSums; ++s) sum[0] = _mm512_add_epi32(sum[0], sum[s]);
  used = float(_mm512_cvtsi512_si32(sum[0]));
}

__attribute__((target("avx2,avxvnni"))) void int8_avx2() {
  const __m256i x = _mm256_set1_epi32(int(pattern)), y = _mm256_set1_epi32(int(pattern));
  __m256i sum[kSums];
  for (__m256i& one : sum) one = _mm256_setzero_si256();
  for (int i = 0; i < kLoops; ++i)
#pragma GCC unroll 12
    for (int s = 0; s < kSums; ++s) sum[s] = _mm256_dpbusd_avx_epi32(sum[s], x, y);
  for (int s = 1; s < kSums; ++s) sum[0] = _mm256_add_epi32(sum[0], sum[s]);
  used = float(_mm256_cvtsi256_si32(sum[0]));
}

std::vector<Peak> detect() {
  const CpuFeatures& cpu = cpu_features();
  std::vector<Peak> found;
  if (cpu.avx2) found.push_back({"fp32-avx2", kSumOps * 16, fp32_avx2});
  if (cpu.avx512f) found.push_back({"fp32-avx512", kSumOps * 32, fp32_avx512});
  if (cpu.avx512f && cpu.avx512_bf16) found.push_back({"bf16-avx512", kSumOps * 64, bf16_avx512});
  if (cpu.avx512f && cpu.avx512_vnni) found.push_back({"int8-avx512", kSumOps * 128, int8_avx512});
  if (cpu.avx2 && cpu.avx_vnni) found.push_back({"int8-avx2", kSumOps * 64, int8_avx2});
  if (cpu.amx) found.push_back({"bf16-amx", kPeakItemFlops, run_peak_tiles});
  if (cpu.amx) found.push_back({"int8-amx", 2 * kPeakItemFlops, run_peak_int8_tiles});
  return found;
}
#else
std::vector<Peak> detect() { return {}; }
#endif

// Operations per second of one thread; 0 where the processor has no such unit.
double rate(const std::string& unit) {
  double best = 0;
  for (const Peak& peak : peaks())
    for (int i = 0; i < 5 && unit == peak.name; ++i) {
      const auto before = std::chrono::steady_clock::now();
      peak.run();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - before;
      best = std::max(best, peak.item_ops / took.count());
    }
  return best;
}

}  // namespace

bool bf16_dots_are_faster() {
  static const bool faster = rate("bf16-avx512") >= rate("fp32-avx512");
  return faster;
}

const std::vector<Peak>& peaks() {
  static const std::vector<Peak> found = detect();
  return found;
}

}  // namespace moesaic
