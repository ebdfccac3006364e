// What all CUDA sources use: short names of types, and early launches.
#pragma once

typedef unsigned int u32;
typedef unsigned short u16;
typedef long long i64;
typedef unsigned long long u64;

// Kernels that follow may be launched while this one runs; `await_previous` is where they need its results.
__device__ __forceinline__ void release_next() { asm volatile("griddepcontrol.launch_dependents;"); }
__device__ __forceinline__ void await_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
