// Experts with one row each, read from packed blocks at memory speed. Besides what packed.h wants, the macros THREADS,
// MIN_BLOCKS, UP_UNROLL, DOWN_UNROLL, DOWN_COUNT say how the work is cut.
//
// A warp reads eight rows of words at once, 16 bytes per lane: lane l has outputs 4 (l % 4) ... + 3 of row l / 4. The
// warps of a block share a strip's rows, so that every block has many reads under way.
#include "codes.h"
#include "packed.h"
#include "reads.h"

// Inputs as the words want them, in shared memory, zero beyond the end; int4 also has a correction per row of words.
template <int Inputs>
__device__ void stage_inputs(const u16* x, int width, float* inputs, float* corrections) {
  using S = Strip<Inputs>;
  for (int i = threadIdx.x; i < S::inputs / 2; i += blockDim.x) {
    float low = 0, high = 0;
    if (2 * i < width) {
      const u32 pair = reinterpret_cast<const u32*>(x)[i];
      low = low_half(pair), high = high_half(pair);
    }
    inputs[2 * i] = BITS == 4 ? beside_high(low, high) : low;
    inputs[2 * i + 1] = high;
  }
  __syncthreads();
  if constexpr (BITS == 4) {
    for (int row = threadIdx.x; row < S::rows; row += blockDim.x) {
      float sum = 0;
      for (int i = 0; i < 4; ++i) {
        const float high = inputs[row * 8 + 2 * i + 1];
        sum += pair_bias(inputs[row * 8 + 2 * i], high);
      }
      corrections[row] = sum;
    }
    __syncthreads();
  }
}

__device__ __forceinline__ float word_dot(u32 word, const float* x) {
  if constexpr (BITS == 16)
    return low_half(word) * x[0] + high_half(word) * x[1];
  else
    return codes_dot<BITS>(word, x);
}

// A lane's reads of Count neighbouring strips: Unroll rows of each, and their scales.
template <int Inputs, int Count, int Unroll>
struct Batch {
  using S = Strip<Inputs>;
  uint4 words[Unroll][Count];
  uint2 scales[Unroll][Count];

  __device__ __forceinline__ void read(const u32* source, int base) {
    const int sub = threadIdx.x % 32 / 4, first = threadIdx.x % 4 * 4;
#pragma unroll
    for (int u = 0; u < Unroll; ++u) {
      const int row = (base + u) * 8 + sub;
      if (row >= S::rows) continue;
#pragma unroll
      for (int s = 0; s < Count; ++s) {
        const u32* strip = source + s * S::words;
        words[u][s] = read_once(reinterpret_cast<const uint4*>(strip + S::scale_words + row * 16 + first));
        if constexpr (BITS != 16)
          scales[u][s] = __ldg(reinterpret_cast<const uint2*>(strip + (row * PER_WORD / GROUP * 16 + first) / 2));
      }
    }
  }

  // Adds to total[s][j] this lane's part of output 4 (lane % 4) + j. `fill`: null, or where to write what was read.
  __device__ __forceinline__ void multiply(u32* fill, int base, const float* inputs, const float* corrections,
                                           float (&total)[Count][4]) const {
    const int sub = threadIdx.x % 32 / 4, first = threadIdx.x % 4 * 4;
#pragma unroll
    for (int u = 0; u < Unroll; ++u) {
      const int row = (base + u) * 8 + sub;
      if (row >= S::rows) continue;
      float x[PER_WORD];
#pragma unroll
      for (int i = 0; i < PER_WORD; ++i) x[i] = inputs[row * PER_WORD + i];
#pragma unroll
      for (int s = 0; s < Count; ++s) {
        const uint4 v = words[u][s];
        if (fill) *reinterpret_cast<uint4*>(fill + s * S::words + S::scale_words + row * 16 + first) = v;
        float part[4] = {word_dot(v.x, x), word_dot(v.y, x), word_dot(v.z, x), word_dot(v.w, x)};
        if constexpr (BITS != 16) {
          const float correction = BITS == 4 ? corrections[row] : 0.0f;
          const uint2 c = scales[u][s];
          const float scale[4] = {low_half(c.x), high_half(c.x), low_half(c.y), high_half(c.y)};
#pragma unroll
          for (int j = 0; j < 4; ++j) total[s][j] += scale[j] * (part[j] - correction);
        } else {
#pragma unroll
          for (int j = 0; j < 4; ++j) total[s][j] += part[j];
        }
      }
    }
  }

  // The first row that a warp reads, in units of eight, and how far apart its batches are.
  static __device__ __forceinline__ int first_base() { return threadIdx.x / 32 * Unroll; }
  static __device__ __forceinline__ int base_step() { return blockDim.x / 32 * Unroll; }
};

// All of a warp's rows, of which `batch` has been read already.
template <int Inputs, int Count, int Unroll>
__device__ __forceinline__ void strips_dot(Batch<Inputs, Count, Unroll>& batch, const u32* source, u32* fill,
                                           const float* inputs, const float* corrections,
                                           float (&total)[Count][4]) {
  using S = Strip<Inputs>;
  constexpr int loads = divide_up(S::rows, 8);
  for (int base = batch.first_base(); base < loads; base += batch.base_step()) {
    if (base != batch.first_base()) batch.read(source, base);
    batch.multiply(fill, base, inputs, corrections, total);
  }
  if constexpr (BITS != 16) {
    if (fill)
      for (int i = threadIdx.x; i < Count * S::scale_words; i += blockDim.x) {
        const int at = i / S::scale_words * S::words + i % S::scale_words;
        fill[at] = source[at];
      }
  }
}

// Sums of all lanes and warps: thread n < 16 Count gets output n % 16 of strip n / 16. `sums` has 16 Count places per warp.
template <int Count>
__device__ __forceinline__ float reduce(float (&total)[Count][4], float* sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
#pragma unroll
  for (int s = 0; s < Count; ++s)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float value = total[s][j];
      for (int step = 4; step < 32; step *= 2) value += __shfl_xor_sync(~0u, value, step);
      if (lane < 4) sums[(warp * Count + s) * 16 + lane * 4 + j] = value;
    }
  __syncthreads();
  float sum = 0;
  if (threadIdx.x < Count * 16)
    for (int w = 0; w < warps; ++w) sum += sums[w * Count * 16 + threadIdx.x];
  return sum;
}

struct Entry {
  const u32* block;
  u32* fill;
  u32 ticket;
  i64 pair;
};

// Reads an expert's entry; false: there are fewer experts.
__device__ __forceinline__ bool find(const i64* table, i64 experts, int expert, Entry& entry) {
  const i64 count = table[0], block = table[BLOCKS_AT + expert], fill = table[fills_at(experts) + expert];
  const i64 ticket = table[waits_at(experts) + expert], first = table[firsts_at(experts) + expert];
  if (expert >= count) return false;
  entry.block = reinterpret_cast<const u32*>(block);
  entry.fill = reinterpret_cast<u32*>(fill);
  entry.ticket = u32(ticket);
  entry.pair = table[rows_at(experts) + first];
  return true;
}

// inner[pair] = activation(gate(x)) * up(x): one strip of each per block. Grid [up strips, experts]. There is one token,
// whose inputs are read while the table arrives: in front of this kernel stands what brings the table, and that begins
// when everything before it has ended.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    up_vector(const i64* table, i64 experts, const u16* x, u16* inner) {
  __shared__ __align__(16) float inputs[Up::inputs];
  __shared__ float corrections[BITS == 4 ? Up::rows : 1];
  __shared__ float sums[THREADS];
  stage_inputs<HIDDEN>(x, HIDDEN, inputs, corrections);
  await_previous();
  Entry e;
  if (!find(table, experts, blockIdx.y, e)) return;
  if (e.ticket) await_copy(table, e.ticket);
  const i64 at = i64(2) * blockIdx.x * Up::words;
  Batch<HIDDEN, 2, UP_UNROLL> batch;
  batch.read(e.block + at, batch.first_base());
  float total[2][4] = {};
  strips_dot(batch, e.block + at, e.fill ? e.fill + at : nullptr, inputs, corrections, total);
  release_next();
  const float sum = reduce<2>(total, sums);
  if (threadIdx.x < 32) {
    const float up = __shfl_down_sync(~0u, sum, 16);
    const int output = blockIdx.x * 16 + threadIdx.x;
    if (threadIdx.x < 16 && output < INTERMEDIATE) inner[e.pair * INTERMEDIATE + output] = to_bf16(activate(sum) * up);
  }
}

// parts[pair] = down(inner[pair]): DOWN_COUNT strips per block. Grid [down strips / DOWN_COUNT, experts]. Weights are
// read while `up_vector` ends; the table is complete before that begins.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    down_vector(const i64* table, i64 experts, const u16* inner, float* parts) {
  __shared__ __align__(16) float inputs[Down::inputs];
  __shared__ float corrections[BITS == 4 ? Down::rows : 1];
  __shared__ float sums[THREADS / 2 * DOWN_COUNT];
  Entry e;
  if (!find(table, experts, blockIdx.y, e)) return;
  const i64 at = DOWN_AT + i64(DOWN_COUNT) * blockIdx.x * Down::words;
  Batch<INTERMEDIATE, DOWN_COUNT, DOWN_UNROLL> batch;
  const bool there = !e.ticket;  // else its bytes have arrived only when `up_vector` has seen them
  if (there) batch.read(e.block + at, batch.first_base());
  await_previous();
  release_next();
  if (!there) batch.read(e.block + at, batch.first_base());
  stage_inputs<INTERMEDIATE>(inner + e.pair * INTERMEDIATE, INTERMEDIATE, inputs, corrections);
  float total[DOWN_COUNT][4] = {};
  strips_dot(batch, e.block + at, e.fill ? e.fill + at : nullptr, inputs, corrections, total);
  const float sum = reduce<DOWN_COUNT>(total, sums);
  const int output = blockIdx.x * 16 * DOWN_COUNT + threadIdx.x;
  if (threadIdx.x < 16 * DOWN_COUNT && output < HIDDEN) parts[e.pair * HIDDEN + output] = sum;
}
