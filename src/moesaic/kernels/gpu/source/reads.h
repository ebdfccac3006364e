// Reads of weights.
#pragma once

#include "device.h"

// Weights are read once: they should not displace anything in the L1 cache.
__device__ __forceinline__ uint4 read_once(const uint4* at) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
}
