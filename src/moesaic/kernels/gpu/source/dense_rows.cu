// Dense matrices in int8 or int4 (kernels/quantized_matrix.py) times some rows, by the tensor cores. The macros BITS and
// TILES are given by the caller. Weights are code times scale, rounded to bf16, as dense.cu widens them, but in registers.
//
// A block computes TILES times 8 outputs of 16 rows; its warps share the inputs, in chunks of four 16-byte reads per
// output. Lane l (g = l / 4, t = l % 4) reads number t of output g of every tile, and the same inputs of rows g and
// g + 8. Which input is which k of a product is free: both operands take the order of the codes.
#include "device.h"
#include "numbers.h"
#include "scaled_codes.h"

constexpr int WARPS = 8;
constexpr int OUTPUTS = 8 * TILES;  // of a block
constexpr int PER_READ = 128 / BITS;
constexpr int PAIRS = PER_READ / 2;
constexpr int GROUP = BITS == 8 ? 256 : 32;  // inputs per scale

// Weights of one output for a chunk, as a lane has them.
struct Read {
  uint4 codes;
  float scale;

  __device__ __forceinline__ u32 word(int i) const { return i == 0 ? codes.x : i == 1 ? codes.y : i == 2 ? codes.z : codes.w; }

  // Inputs 2 p and 2 p + 1 of the read.
  __device__ __forceinline__ u32 pair(int p) const {
    if constexpr (BITS == 8) return scaled_bytes(word(p / 2), p % 2, scale);
    const u32 half = __float_as_uint(scale) >> 16;
    return scaled_nibbles(word(p / 4), p % 4, half | half << 16);
  }
};

// PER_READ inputs of a row, two in a word; zero beyond its end, which is a multiple of 8.
__device__ __forceinline__ void read_inputs(const u16* row, i64 at, i64 inputs, u32 (&x)[PAIRS]) {
#pragma unroll
  for (int i = 0; i < PER_READ; i += 8) {
    uint4 four = {};
    if (at + i < inputs) four = __ldg(reinterpret_cast<const uint4*>(row + at + i));
    x[i / 2] = four.x, x[i / 2 + 1] = four.y, x[i / 2 + 2] = four.z, x[i / 2 + 3] = four.w;
  }
}

// out = x @ weights.T + bias. Grid [outputs / OUTPUTS, rows / 16], 256 threads; `inputs` is a multiple of 8.
extern "C" __global__ void __launch_bounds__(256)
    rows_product(const u16* x, const uint4* codes, const u16* scales, const u16* bias, u16* out, i64 rows, i64 outputs,
                 i64 inputs) {
  __shared__ float sums[WARPS][16][OUTPUTS + 1];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const i64 first = i64(blockIdx.x) * OUTPUTS, top = i64(blockIdx.y) * 16;
  const i64 reads = (inputs + PER_READ - 1) / PER_READ, groups = (inputs + GROUP - 1) / GROUP;
  // Beyond the last output or row: something that is not stored.
  i64 output[TILES];
  for (int s = 0; s < TILES; ++s) output[s] = first + 8 * s + g < outputs ? first + 8 * s + g : outputs - 1;
  const u16* low_row = x + (top + g < rows ? top + g : rows - 1) * inputs;
  const u16* high_row = x + (top + g + 8 < rows ? top + g + 8 : rows - 1) * inputs;
  float c[TILES][4] = {};
#pragma unroll 2
  for (i64 chunk = warp; chunk * 4 < reads; chunk += WARPS) {
    const i64 at = chunk * 4 + t;
    Read weights[TILES] = {};
#pragma unroll
    for (int s = 0; s < TILES; ++s)
      if (at < reads) {
        weights[s].codes = __ldg(codes + output[s] * reads + at);
        weights[s].scale = wide(__ldg(scales + output[s] * groups + at * PER_READ / GROUP));
      }
    u32 low[PAIRS], high[PAIRS];
    read_inputs(low_row, at * PER_READ, inputs, low);
    read_inputs(high_row, at * PER_READ, inputs, high);
#pragma unroll
    for (int p = 0; p < PAIRS; p += 2) {
      const u32 a[4] = {low[p], high[p], low[p + 1], high[p + 1]};
#pragma unroll
      for (int s = 0; s < TILES; ++s) multiply_add(c[s], a, weights[s].pair(p), weights[s].pair(p + 1));
    }
  }
  for (int s = 0; s < TILES; ++s)
    for (int i = 0; i < 4; ++i) sums[warp][g + i / 2 * 8][s * 8 + 2 * t + i % 2] = c[s][i];
  __syncthreads();
  for (int i = threadIdx.x; i < 16 * OUTPUTS; i += 32 * WARPS) {
    const int row = i / OUTPUTS, column = i % OUTPUTS;
    if (top + row >= rows || first + column >= outputs) continue;
    float sum = bias ? wide(bias[first + column]) : 0.0f;
    for (int w = 0; w < WARPS; ++w) sum += sums[w][row][column];
    out[(top + row) * outputs + first + column] = to_bf16(sum);
  }
}
