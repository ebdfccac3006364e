// Enough of CUDA to run a kernel's blocks on the CPU, one after the other: threads are contexts that take turns, and give
// way where threads wait for each other.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

#include <ucontext.h>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)

struct uint4 { unsigned x, y, z, w; };
struct float4 { float x, y, z, w; };
struct Index { unsigned x, y, z; };
static Index threadIdx, blockIdx, blockDim, gridDim;

inline float __uint_as_float(unsigned bits) { float f; std::memcpy(&f, &bits, 4); return f; }
inline unsigned __float_as_uint(float f) { unsigned bits; std::memcpy(&bits, &f, 4); return bits; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
template <class T> T __ldg(const T* at) { return *at; }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const std::uint64_t bytes = a | std::uint64_t(b) << 32;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) out |= unsigned(bytes >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
  return out;
}

struct Thread {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(1 << 17);
  bool done = false;
  int shuffles = 0;
};
static ucontext_t scheduler;
static std::vector<Thread> threads;
static unsigned current, arrived, generation, alive;
static std::uint64_t exchanged[2][1024];

inline void give_way() {
  const unsigned me = current;
  swapcontext(&threads[me].context, &scheduler);
  threadIdx.x = current = me;
}
inline void pass_barrier() {
  if (arrived >= alive) arrived = 0, ++generation;
}
inline void __syncthreads() {
  const unsigned mine = generation;
  ++arrived;
  pass_barrier();
  while (generation == mine) give_way();
}
template <class T> T __shfl_xor_sync(unsigned, T value, int with) {
  const int turn = threads[current].shuffles++ % 2;
  std::memcpy(&exchanged[turn][current], &value, sizeof value);
  give_way();
  std::memcpy(&value, &exchanged[turn][current ^ with], sizeof value);
  return value;
}
// No thread gives way in the middle of these.
inline void __threadfence() {}
template <class T> T atomicAdd(T* at, T value) { return std::exchange(*at, *at + value); }
template <class T> T atomicMax(T* at, T value) { return std::exchange(*at, *at > value ? *at : value); }
template <class T> T atomicExch(T* at, T value) { return std::exchange(*at, value); }

static void (*body)();
static void enter() {
  body();
  threads[current].done = true;
  --alive;
  pass_barrier();
  swapcontext(&threads[current].context, &scheduler);
}

static void run_block(unsigned count) {
  threads = std::vector<Thread>(count);
  alive = count, arrived = generation = 0;
  for (Thread& thread : threads) {
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.data();
    thread.context.uc_stack.ss_size = thread.stack.size();
    makecontext(&thread.context, enter, 0);
  }
  while (alive)
    for (unsigned i = 0; i < count; ++i)
      if (!threads[i].done) {
        threadIdx.x = current = i;
        swapcontext(&scheduler, &threads[i].context);
      }
}

static const std::int64_t* given;
template <auto Kernel, class... A, std::size_t... I>
void call(void (*)(A...), std::index_sequence<I...>) { Kernel((A)given[I]...); }
template <auto Kernel, class... A>
void call_with(void (*kernel)(A...)) { call<Kernel>(kernel, std::index_sequence_for<A...>()); }
template <auto Kernel>
void run(unsigned grid_x, unsigned grid_y, unsigned count, const std::int64_t* arguments) {
  given = arguments, body = [] { call_with<Kernel>(Kernel); }, blockDim = {count, 1, 1};
  gridDim = {grid_x, grid_y, 1};
  for (unsigned y = 0; y < grid_y; ++y)
    for (unsigned x = 0; x < grid_x; ++x) blockIdx = {x, y, 0}, run_block(count);
}
