#include "products/cpu_features.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace moesaic {
namespace {

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers leaf(unsigned number, unsigned sub) {
  Registers r;
  if (!__get_cpuid_count(number, sub, &r.a, &r.b, &r.c, &r.d)) return {};
  return r;
}

bool bit(unsigned value, int number) { return value >> number & 1; }

// Which register files the system saves when it switches threads.
unsigned long long saved_state() {
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (unsigned long long)high << 32 | low;
}

// Linux gives tiles to a process that asks.
bool tiles_allowed() {
  constexpr int kRequest = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

Cpu look() {
  Cpu found;
  const Registers one = leaf(1, 0), seven = leaf(7, 0), seven_one = leaf(7, 1);
  if (!bit(one.c, 27)) return found;  // no xgetbv
  const unsigned long long saved = saved_state();
  const bool ymm = (saved & 0x6) == 0x6, zmm = (saved & 0xe6) == 0xe6;
  const bool tiles = (saved & 0x60000) == 0x60000;
  found.avx2 = ymm && bit(one.c, 12) && bit(one.c, 29) && bit(seven.b, 5);
  found.avx512 = found.avx2 && zmm && bit(seven.b, 16) && bit(seven.b, 17) && bit(seven.b, 30) &&
                 bit(seven.b, 31) && bit(seven.c, 11) && bit(seven_one.a, 5);
  found.amx = found.avx512 && tiles && bit(seven.d, 22) && bit(seven.d, 24) && bit(seven.d, 25) &&
              tiles_allowed();
  return found;
}

}  // namespace

const Cpu& cpu() {
  static const Cpu found = look();
  return found;
}

}  // namespace moesaic
