#include "products/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <sys/syscall.h>
#include <unistd.h>

namespace moesaic {
namespace {

#if defined(__x86_64__)

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers leaf(unsigned number, unsigned sub) {
  Registers r;
  if (!__get_cpuid_count(number, sub, &r.a, &r.b, &r.c, &r.d)) return {};
  return r;
}

bool bit(unsigned value, int number) { return value >> number & 1; }

// XCR0: register state that the operating system saves on a context switch.
unsigned long long xcr0() {
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (unsigned long long)high << 32 | low;
}

// Linux grants tile state to a process on request (ARCH_REQ_XCOMP_PERM).
bool tiles_allowed() {
  constexpr int kRequest = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

CpuFeatures detect() {
  CpuFeatures found;
  const Registers one = leaf(1, 0), seven = leaf(7, 0), seven_one = leaf(7, 1);
  if (!bit(one.c, 27)) return found;  // no xgetbv
  const unsigned long long saved = xcr0();
  const bool ymm = (saved & 0x6) == 0x6, zmm = (saved & 0xe6) == 0xe6;
  const bool tiles = (saved & 0x60000) == 0x60000;
  found.avx2 = ymm && bit(one.c, 12) && bit(one.c, 29) && bit(seven.b, 5);
  found.avx512f = found.avx2 && zmm && bit(seven.b, 16);
  found.avx512_base = found.avx512f && bit(seven.b, 17) && bit(seven.b, 30) && bit(seven.b, 31);
  found.avx512_vnni = found.avx512f && bit(seven.c, 11);
  found.avx512_bf16 = found.avx512f && bit(seven_one.a, 5) && bit(seven.b, 30) && bit(seven.b, 31);
  found.avx512 = found.avx512_base && found.avx512_vnni && found.avx512_bf16;
  found.avx_vnni = found.avx2 && bit(seven_one.a, 4);
  found.amx =
      found.avx512 && tiles && bit(seven.d, 22) && bit(seven.d, 24) && bit(seven.d, 25) && tiles_allowed();
  return found;
}
#else
CpuFeatures detect() { return {}; }
#endif

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures found = detect();
  return found;
}

}  // namespace moesaic
