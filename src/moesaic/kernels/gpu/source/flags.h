// Flags in pinned memory, raised by the conductor or for it.
#pragma once

#include "device.h"

__device__ __forceinline__ u32 read_flag(const u32* flag) {
  u32 value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}

// Until `flag`, seen to be `seen` before, is at least `number`. All threads of a block call it: one looks.
__device__ __forceinline__ void await_flag(const u32* flag, u32 number, u32 seen) {
  if (threadIdx.x == 0)
    while (int(seen - number) < 0) seen = read_flag(flag);
  __syncthreads();
}

// After everything that this thread has written, or has seen written before a barrier of its block.
__device__ __forceinline__ void raise_flag(u32* flag, u32 number) {
  __threadfence_system();
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(number) : "memory");
}
