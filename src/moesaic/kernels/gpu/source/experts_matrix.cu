// Experts with several rows each, on the tensor cores. Besides what packed.h wants, ROW_TILES says how many times 16 rows
// a block computes, MIN_BLOCKS how many blocks must fit a multiprocessor.
//
// The packed layout is that of the second operand of mma.m16n8k16 already: a word has consecutive inputs of one output.
// Lane l (g = l / 4, t = l % 4) reads words 2 g and 2 g + 1 of row 4 j + t: a warp reads 256 bytes in a row, straight
// into registers. Word 2 g goes to one product of 8 outputs and 2 g + 1 to another, so that a lane ends with outputs
// 4 t ... 4 t + 3 of a strip. Which input is which k of a product is free: both operands take the order of the words.
// Inputs are staged in shared memory, TILE_K at a time, while the tile before them is multiplied.
#include "packed.h"
#include "scaled_codes.h"
#include "tensor_cores.h"

constexpr int WARPS = 4;
constexpr int BLOCK_ROWS = 16 * ROW_TILES;
constexpr int TILE_K = 128;
constexpr int READ_ROWS = 16;                       // rows of words that a warp reads at once
constexpr int READ_K = READ_ROWS * PER_WORD;        // inputs of them: 32, 64 or 128
constexpr int READS = READ_ROWS / 4;                // 8-byte reads per lane and strip
constexpr int PADDING = BITS == 16 ? 8 : BITS == 8 ? 16 : 32;  // values per row, so that lanes meet different banks
constexpr int TILE_STRIDE = TILE_K + PADDING;

struct Pair {
  u32 low, high;  // of a lane's outputs 2 g and 2 g + 1
};

__device__ __forceinline__ void copy_async(void* to, const void* from, bool wanted) {
  const u32 target = u32(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(from), "r"(wanted ? 16 : 0));
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;"); }
__device__ __forceinline__ void await_copies_but_one() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

__device__ __forceinline__ Pair read_pair(const u32* at) {
  Pair v;
  asm volatile("ld.global.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.low), "=r"(v.high) : "l"(at));
  return v;
}

// What a lane has read of two neighbouring strips.
template <int Inputs>
struct Words {
  using S = Strip<Inputs>;
  Pair words[2][READS];
  u32 scales[2][BITS == 4 ? READS : 1];

  // `strips` is 1 where the second strip does not exist.
  __device__ __forceinline__ void read(const u32* source, int number, int strips) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const u32* strip = source + s * S::words;
#pragma unroll
      for (int j = 0; j < READS; ++j) {
        const int row = number * READ_ROWS + 4 * j + t;
        const bool there = row < S::rows && s < strips;
        words[s][j] = there ? read_pair(strip + S::scale_words + row * 16 + 2 * g) : Pair{0, 0};
        if constexpr (BITS == 4) scales[s][j] = there ? __ldg(strip + (number * READS + j) * 8 + g) : 0;
      }
      if constexpr (BITS == 8) scales[s][0] = s < strips ? __ldg(strip + number * READ_K / GROUP * 8 + g) : 0;
    }
  }

  __device__ __forceinline__ void write(u32* fill, int number, int strips) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      u32* strip = fill + s * S::words;
#pragma unroll
      for (int j = 0; j < READS; ++j) {
        const int row = number * READ_ROWS + 4 * j + t;
        if (row < S::rows && s < strips)
          *reinterpret_cast<uint2*>(strip + S::scale_words + row * 16 + 2 * g) =
              make_uint2(words[s][j].low, words[s][j].high);
      }
    }
  }
};

using Sums = float[ROW_TILES][2][2][4];  // by 16 rows, strip, half of its outputs

// Products of READ_K inputs that stand in shared memory from `x` on.
template <int Inputs>
__device__ __forceinline__ void multiply(const Words<Inputs>& read, const u16* x, Sums& sums) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  if constexpr (BITS == 16) {
#pragma unroll
    for (int c = 0; c < 2; ++c)
#pragma unroll
      for (int m = 0; m < ROW_TILES; ++m) {
        const u16* row = x + (16 * m + g) * TILE_STRIDE + 16 * c + 2 * t;
        const u32 a[4] = {*reinterpret_cast<const u32*>(row), *reinterpret_cast<const u32*>(row + 8 * TILE_STRIDE),
                          *reinterpret_cast<const u32*>(row + 8),
                          *reinterpret_cast<const u32*>(row + 8 * TILE_STRIDE + 8)};
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          multiply_add(sums[m][s][0], a, read.words[s][2 * c].low, read.words[s][2 * c + 1].low);
          multiply_add(sums[m][s][1], a, read.words[s][2 * c].high, read.words[s][2 * c + 1].high);
        }
      }
  } else if constexpr (BITS == 8) {
#pragma unroll
    for (int j = 0; j < READS; ++j) {
      u32 b[2][2][2];
#pragma unroll
      for (int s = 0; s < 2; ++s)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          b[s][0][half] = scaled_bytes(read.words[s][j].low, half, low_half(read.scales[s][0]));
          b[s][1][half] = scaled_bytes(read.words[s][j].high, half, high_half(read.scales[s][0]));
        }
#pragma unroll
      for (int m = 0; m < ROW_TILES; ++m) {
        const u16* row = x + (16 * m + g) * TILE_STRIDE + 16 * j + 4 * t;
        const uint2 upper = *reinterpret_cast<const uint2*>(row);
        const uint2 lower = *reinterpret_cast<const uint2*>(row + 8 * TILE_STRIDE);
        const u32 a[4] = {upper.x, lower.x, upper.y, lower.y};
#pragma unroll
        for (int s = 0; s < 2; ++s)
#pragma unroll
          for (int n = 0; n < 2; ++n) multiply_add(sums[m][s][n], a, b[s][n][0], b[s][n][1]);
      }
    }
  } else {
#pragma unroll
    for (int j = 0; j < READS; ++j) {
      u32 b[2][2][4];
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        const u32 scale = read.scales[s][j];
        const u32 low = __byte_perm(scale, 0, 0x1010), high = __byte_perm(scale, 0, 0x3232);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          b[s][0][i] = scaled_nibbles(read.words[s][j].low, i, low);
          b[s][1][i] = scaled_nibbles(read.words[s][j].high, i, high);
        }
      }
#pragma unroll
      for (int m = 0; m < ROW_TILES; ++m) {
        const u16* row = x + (16 * m + g) * TILE_STRIDE + 32 * j + 8 * t;
        const uint4 upper = *reinterpret_cast<const uint4*>(row);
        const uint4 lower = *reinterpret_cast<const uint4*>(row + 8 * TILE_STRIDE);
        const u32 a[2][4] = {{upper.x, lower.x, upper.y, lower.y}, {upper.z, lower.z, upper.w, lower.w}};
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int s = 0; s < 2; ++s)
#pragma unroll
            for (int n = 0; n < 2; ++n) multiply_add(sums[m][s][n], a[i], b[s][n][2 * i], b[s][n][2 * i + 1]);
      }
    }
  }
}

// An expert's rows that a block computes.
struct Rows {
  const u32* block;
  u32* fill;  // null: nothing is to be written
  u32 ticket;
  i64 first, count;
};

// False: there is nothing for this block. `part`: 0 all experts, 1 those that are there, 2 those that arrive.
__device__ __forceinline__ bool find(const i64* table, i64 experts, i64 part, Rows& rows) {
  const i64 expert = blockIdx.z + (part == 2 ? table[ARRIVING] : 0);
  const i64 start = i64(blockIdx.x) * BLOCK_ROWS;
  if (expert >= table[part == 1 ? ARRIVING : COUNT]) return false;
  const i64 first = table[firsts_at(experts) + expert] + start, end = table[firsts_at(experts) + expert + 1];
  if (first >= end) return false;
  rows.block = reinterpret_cast<const u32*>(table[BLOCKS_AT + expert]);
  rows.fill = blockIdx.x ? nullptr : reinterpret_cast<u32*>(table[fills_at(experts) + expert]);
  rows.ticket = u32(table[waits_at(experts) + expert]);
  rows.first = first, rows.count = min(i64(BLOCK_ROWS), end - first);
  return true;
}

struct Shared {
  __align__(16) u16 tiles[2][BLOCK_ROWS * TILE_STRIDE];
  i64 pairs[BLOCK_ROWS];
};

// TILE_K inputs of all rows; zeros beyond the width and the last row.
template <int Inputs>
__device__ __forceinline__ void stage(Shared& shared, int tile, const u16* x, int rows_per_input, int count) {
  constexpr int CHUNKS = TILE_K / 8;
  for (int i = threadIdx.x; i < BLOCK_ROWS * CHUNKS; i += WARPS * 32) {
    const int row = i / CHUNKS, k = tile * TILE_K + i % CHUNKS * 8;
    const bool wanted = row < count && k < Inputs;
    const u16* from = wanted ? x + shared.pairs[row] / rows_per_input * Inputs + k : x;
    copy_async(shared.tiles[tile % 2] + row * TILE_STRIDE + i % CHUNKS * 8, from, wanted);
  }
  commit_copies();
}

// Two strips by all rows of the block.
template <int Inputs>
__device__ __forceinline__ void strips_product(Shared& shared, Words<Inputs>& next, const u32* source, u32* fill,
                                               int strips, const u16* x, int rows_per_input, int count, Sums& sums) {
  using S = Strip<Inputs>;
  constexpr int TILES = divide_up(S::inputs, TILE_K), PER_TILE = TILE_K / READ_K;
  constexpr int TIMES = divide_up(S::rows, READ_ROWS);
  stage<Inputs>(shared, 0, x, rows_per_input, count);
  for (int tile = 0; tile < TILES; ++tile) {
    if (tile + 1 < TILES)
      stage<Inputs>(shared, tile + 1, x, rows_per_input, count);
    else
      commit_copies();
    await_copies_but_one();
    __syncthreads();
#pragma unroll
    for (int part = 0; part < PER_TILE; ++part) {
      const int number = tile * PER_TILE + part;
      if (number >= TIMES || !strips) continue;
      const Words<Inputs> now = next;
      if (number + 1 < TIMES) next.read(source, number + 1, strips);
      if (fill) now.write(fill, number, strips);
      multiply<Inputs>(now, shared.tiles[tile % 2] + part * READ_K, sums);
    }
    __syncthreads();
  }
  if constexpr (BITS != 16) {
    if (fill)
      for (int i = threadIdx.x % 32; i < strips * S::scale_words; i += 32) {
        const int at = i / S::scale_words * S::words + i % S::scale_words;
        fill[at] = source[at];
      }
  }
}

__device__ __forceinline__ void read_pairs(Shared& shared, const i64* table, i64 experts, const Rows& rows) {
  for (int i = threadIdx.x; i < BLOCK_ROWS; i += WARPS * 32)
    shared.pairs[i] = i < rows.count ? table[rows_at(experts) + rows.first + i] : 0;
  __syncthreads();
}

// inner[pair] = activation(gate(x)) * up(x): one strip of each per warp. Grid [row blocks, up strips / WARPS, experts].
extern "C" __global__ void __launch_bounds__(WARPS * 32, MIN_BLOCKS)
    up_matrix(const i64* table, i64 experts, i64 part, const u16* x, u16* inner) {
  __shared__ Shared shared;
  await_previous();
  Rows rows;
  if (!find(table, experts, part, rows)) return;
  if (rows.ticket) await_copy(table, rows.ticket);
  read_pairs(shared, table, experts, rows);
  const int strip = blockIdx.y * WARPS + threadIdx.x / 32, strips = strip < UP_STRIPS ? 2 : 0;
  const i64 at = i64(2) * strip * Up::words;
  Words<HIDDEN> words;
  if (strips) words.read(rows.block + at, 0, strips);
  Sums sums = {};
  strips_product<HIDDEN>(shared, words, rows.block + at, rows.fill ? rows.fill + at : nullptr, strips, x, TOP_K,
                         int(rows.count), sums);
  release_next();
  const int g = threadIdx.x % 32 / 4, output = strip * 16 + threadIdx.x % 4 * 4;
  if (output >= INTERMEDIATE) return;
#pragma unroll
  for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 16 * m + 8 * half + g;
      if (row >= rows.count) continue;
      float value[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        value[i] = activate(sums[m][0][i % 2][2 * half + i / 2]) * sums[m][1][i % 2][2 * half + i / 2];
      *reinterpret_cast<uint2*>(inner + shared.pairs[row] * INTERMEDIATE + output) =
          make_uint2(round_pair(value[0], value[1]), round_pair(value[2], value[3]));
    }
}

// parts[pair] = down(inner[pair]): two strips per warp. Grid [row blocks, down strips / (2 WARPS), experts].
extern "C" __global__ void __launch_bounds__(WARPS * 32, MIN_BLOCKS)
    down_matrix(const i64* table, i64 experts, i64 part, const u16* inner, float* parts) {
  constexpr int STRIPS = divide_up(HIDDEN, 16);
  __shared__ Shared shared;
  Rows rows;
  if (!find(table, experts, part, rows)) return;
  const int strip = (blockIdx.y * WARPS + threadIdx.x / 32) * 2, strips = max(min(STRIPS - strip, 2), 0);
  const i64 at = DOWN_AT + i64(strip) * Down::words;
  Words<INTERMEDIATE> words;
  const bool there = !rows.ticket;  // else its bytes have arrived only when `up_matrix` has seen them
  if (there && strips) words.read(rows.block + at, 0, strips);
  await_previous();
  if (!there && strips) words.read(rows.block + at, 0, strips);
  read_pairs(shared, table, experts, rows);
  Sums sums = {};
  strips_product<INTERMEDIATE>(shared, words, rows.block + at, rows.fill ? rows.fill + at : nullptr, strips, inner, 1,
                               int(rows.count), sums);
  const int g = threadIdx.x % 32 / 4, first = strip * 16 + threadIdx.x % 4 * 4;
#pragma unroll
  for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 16 * m + 8 * half + g;
      if (row >= rows.count) continue;
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        const int output = first + 16 * s;
        if (output >= HIDDEN) continue;
        const float(&c)[2][4] = sums[m][s];
        *reinterpret_cast<float4*>(parts + shared.pairs[row] * HIDDEN + output) =
            make_float4(c[0][2 * half], c[1][2 * half], c[0][2 * half + 1], c[1][2 * half + 1]);
      }
    }
}
