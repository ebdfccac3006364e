// Dense matrices in int8 or int4 (kernels/quantized_matrix.py): products with one token at memory speed, and rows widened
// to bf16 for PyTorch's products with many. The macro BITS is given by the caller; kernels of a decode step also want
// HIDDEN and NORM_EPS, attention's output projection ATTENDED, and shared experts INNER and ACTIVATION. Sums are in fp32,
// activations are not quantised.
//
// A warp computes a few outputs at a time. A lane reads 16 bytes of a row at once, PER_READ neighbouring inputs, which
// share a scale; the inputs themselves come from shared memory, once for all outputs.

#include "codes.h"
#include "device.h"
#include "numbers.h"
#include "reads.h"

constexpr int PER_WORD = 32 / BITS;
constexpr int PER_READ = 128 / BITS;
constexpr int GROUP = BITS == 8 ? 256 : 32;  // inputs per scale

__host__ __device__ constexpr int divide_up(int a, int b) { return (a + b - 1) / b; }

// Inputs of a read are PER_READ + 4 floats apart in shared memory: neighbouring lanes read 16 bytes each from different
// banks.
constexpr int STRIDE = PER_READ + 4;
__device__ __forceinline__ int staged_at(int input) { return input / PER_READ * STRIDE + input % PER_READ; }

__device__ __forceinline__ void stage_pair(float* inputs, int at, float low, float high) {
  float* to = inputs + staged_at(at);
  to[0] = BITS == 4 ? beside_high(low, high) : low;
  to[1] = high;
}

// What int4's sums have too much, per read. After the inputs are staged; ends with a barrier.
__device__ __forceinline__ void stage_corrections(const float* inputs, float* corrections, int reads) {
  __syncthreads();
  if constexpr (BITS == 4) {
    for (int i = threadIdx.x; i < reads; i += 256) {
      float sum = 0;
#pragma unroll
      for (int at = 0; at < PER_READ; at += 2) sum += pair_bias(inputs[i * STRIDE + at], inputs[i * STRIDE + at + 1]);
      corrections[i] = sum;
    }
    __syncthreads();
  }
}

// Adds to sums[r] one read of each of Rows outputs, times the staged inputs of that read.
template <int Rows>
__device__ __forceinline__ void add_read(const uint4 (&codes)[Rows], const float (&scales)[Rows], const float* inputs,
                                         float correction, float (&sums)[Rows]) {
  float parts[Rows] = {};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    float x[PER_WORD];
#pragma unroll
    for (int i = 0; i < PER_WORD; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(inputs + w * PER_WORD + i);
      x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
    }
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      const u32 word = w == 0 ? codes[r].x : w == 1 ? codes[r].y : w == 2 ? codes[r].z : codes[r].w;
      parts[r] += codes_dot<BITS>(word, x);
    }
  }
#pragma unroll
  for (int r = 0; r < Rows; ++r) sums[r] += scales[r] * (BITS == 4 ? parts[r] - correction : parts[r]);
}

__device__ __forceinline__ float warp_sum(float value) {
  for (int step = 16; step; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

struct Matrix {
  const uint4* codes;
  const u16* scales;
  i64 outputs;
  i64 apart = 1;  // outputs that are computed together
};

#ifdef HIDDEN
// A lane's reads of Rows outputs, up to eight at once.
template <int Inputs, int Rows>
struct Reads {
  static constexpr int reads = divide_up(Inputs, PER_READ);  // of a row
  static constexpr int groups = divide_up(Inputs, GROUP);
  static constexpr int staged = reads * STRIDE;
  static constexpr int loads = divide_up(reads, 32);  // of a lane
  static constexpr int ahead = loads < 8 / Rows ? loads : 8 / Rows;
  uint4 codes[ahead][Rows];
  u16 scales[ahead][Rows];

  // From a lane's load number `base` on.
  __device__ __forceinline__ void read(const Matrix& matrix, i64 output, int base = 0) {
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      const int at = (base + i) * 32 + threadIdx.x % 32;
      if (at >= reads) break;
#pragma unroll
      for (int r = 0; r < Rows; ++r) {
        const i64 wanted = output + r * matrix.apart, row = wanted < matrix.outputs ? wanted : matrix.outputs - 1;
        codes[i][r] = read_once(matrix.codes + row * reads + at);
        scales[i][r] = __ldg(matrix.scales + row * groups + at * PER_READ / GROUP);
      }
    }
  }

  // The whole rows times the staged inputs; the first loads have been read. Every lane gets the sums.
  __device__ __forceinline__ void dot(const Matrix& matrix, i64 output, const float* inputs, const float* corrections,
                                      float (&sums)[Rows]) {
#pragma unroll
    for (int r = 0; r < Rows; ++r) sums[r] = 0;
#pragma unroll 1
    for (int base = 0; base < loads; base += ahead) {
      if (base) read(matrix, output, base);
#pragma unroll
      for (int i = 0; i < ahead; ++i) {
        const int at = (base + i) * 32 + threadIdx.x % 32;
        if (at >= reads) break;
        float factors[Rows];
#pragma unroll
        for (int r = 0; r < Rows; ++r) factors[r] = wide(scales[i][r]);
        add_read<Rows>(codes[i], factors, inputs + at * STRIDE, BITS == 4 ? corrections[at] : 0.0f, sums);
      }
    }
#pragma unroll
    for (int r = 0; r < Rows; ++r) sums[r] = warp_sum(sums[r]);
  }
};

// A norm's weights, a pair of neighbours at a time: read before the stream is there.
struct NormWeights {
  static constexpr int each = divide_up(HIDDEN / 2, 256);
  u32 pairs[each];

  __device__ __forceinline__ void read(const u16* weight) {
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int pair = threadIdx.x + i * 256;
      pairs[i] = pair < HIDDEN / 2 ? __ldg(reinterpret_cast<const u32*>(weight) + pair) : 0;
    }
  }
};

// norm(stream), rounded as in network.cu, as stage_pair leaves it; zero beyond the end.
template <int Staged>
__device__ void stage_normed(const u16* stream, const NormWeights& weights, float* inputs) {
  constexpr int each = NormWeights::each, end = Staged / STRIDE * PER_READ;
  float low[each], high[each], square = 0;
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int pair = threadIdx.x + i * 256;
    const u32 both = pair < HIDDEN / 2 ? reinterpret_cast<const u32*>(stream)[pair] : 0;
    low[i] = wide(u16(both)), high[i] = wide(u16(both >> 16));
    square += low[i] * low[i] + high[i] * high[i];
  }
  const float scale = rsqrtf(block_sum(square) / HIDDEN + NORM_EPS);
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int pair = threadIdx.x + i * 256;
    if (pair >= HIDDEN / 2) break;
    const u32 both = weights.pairs[i];
    stage_pair(inputs, 2 * pair, rounded(wide(u16(both)) * rounded(low[i] * scale)),
               rounded(wide(u16(both >> 16)) * rounded(high[i] * scale)));
  }
  for (int at = HIDDEN + 2 * threadIdx.x; at < end; at += 512) stage_pair(inputs, at, 0, 0);
}

// out = norm(stream) @ weights.T + bias. 256 threads; a warp computes `each` outputs that stand side by side, Rows at a
// time.
template <int Rows>
__device__ __forceinline__ void normed_rows(const u16* stream, const u16* norm, const Matrix& matrix, const u16* bias,
                                            u16* out, i64 each) {
  using R = Reads<HIDDEN, Rows>;
  __shared__ __align__(16) float inputs[R::staged];
  __shared__ float corrections[BITS == 4 ? R::reads : 1];
  i64 output = (i64(blockIdx.x) * 8 + threadIdx.x / 32) * each;
  R reads;
  if (output < matrix.outputs) reads.read(matrix, output);
  NormWeights weights;
  weights.read(norm);
  await_previous();
  release_next();
  stage_normed<R::staged>(stream, weights, inputs);
  stage_corrections(inputs, corrections, R::reads);
  const i64 end = output + each < matrix.outputs ? output + each : matrix.outputs;
  for (; output < end; output += Rows) {
    float sums[Rows];
    reads.dot(matrix, output, inputs, corrections, sums);
    if (output + Rows < end) reads.read(matrix, output + Rows);
    if (threadIdx.x % 32) continue;
#pragma unroll
    for (int r = 0; r < Rows; ++r)
      if (output + r < end) out[output + r] = to_bf16(bias ? sums[r] + wide(bias[output + r]) : sums[r]);
  }
}

extern "C" __global__ void __launch_bounds__(256, 3)
    normed_product(const u16* stream, const u16* norm, const uint4* codes, const u16* scales, const u16* bias, u16* out,
                   i64 outputs, i64 each) {
  normed_rows<2>(stream, norm, {codes, scales, outputs}, bias, out, each);
}

// The same where there are so many outputs that inputs in shared memory should be read once for more of them.
extern "C" __global__ void __launch_bounds__(256, 3)
    normed_head(const u16* stream, const u16* norm, const uint4* codes, const u16* scales, const u16* bias, u16* out,
                i64 outputs, i64 each) {
  normed_rows<BITS == 4 ? 4 : 2>(stream, norm, {codes, scales, outputs}, bias, out, each);
}

// One token's `x` times rows of a matrix, Rows outputs of a warp. Every thread of a block calls it; weights are read
// before the kernel in front of this one has ended.
template <int Inputs, int Rows>
__device__ __forceinline__ void rows_dot(const u16* x, const Matrix& matrix, i64 output, float (&sums)[Rows]) {
  using R = Reads<Inputs, Rows>;
  __shared__ __align__(16) float inputs[R::staged];
  __shared__ float corrections[BITS == 4 ? R::reads : 1];
  R reads;
  if (output < matrix.outputs) reads.read(matrix, output);
  await_previous();
  release_next();
  for (int at = 2 * threadIdx.x; at < R::reads * PER_READ; at += 512) {
    const u32 both = at < Inputs ? *reinterpret_cast<const u32*>(x + at) : 0;
    stage_pair(inputs, at, wide(u16(both)), wide(u16(both >> 16)));
  }
  stage_corrections(inputs, corrections, R::reads);
  if (output < matrix.outputs) reads.dot(matrix, output, inputs, corrections, sums);
}

#ifdef ATTENDED
// stream += attended @ weights.T + bias: attention's output projection of one token. 256 threads, an output per warp.
extern "C" __global__ void __launch_bounds__(256)
    add_product(const u16* attended, const uint4* codes, const u16* scales, const u16* bias, u16* stream) {
  const i64 output = blockIdx.x * 8 + threadIdx.x / 32;
  float sums[1];
  rows_dot<ATTENDED, 1>(attended, {codes, scales, HIDDEN}, output, sums);
  if (output >= HIDDEN || threadIdx.x % 32) return;
  if (bias) sums[0] += wide(bias[output]);
  stream[output] = to_bf16(wide(stream[output]) + rounded(sums[0]));
}
#endif

#ifdef INNER
#include "activation.h"

// inner = activation(gate(x)) * up(x) for one token, of a network that every token goes through. Rows of `codes`: gate's,
// then up's. 256 threads, an output of each per warp.
extern "C" __global__ void __launch_bounds__(256, 3)
    gated_product(const u16* x, const uint4* codes, const u16* scales, u16* inner) {
  const i64 output = blockIdx.x * 8 + threadIdx.x / 32;
  float sums[2];
  rows_dot<HIDDEN, 2>(x, {codes, scales, 2 * INNER, INNER}, output, sums);
  if (output >= INNER || threadIdx.x % 32) return;
  inner[output] = to_bf16(activate(rounded(sums[0])) * rounded(sums[1]));
}

// out = inner @ weights.T, the same network's second product. 256 threads, an output per warp.
extern "C" __global__ void __launch_bounds__(256)
    down_product(const u16* inner, const uint4* codes, const u16* scales, u16* out) {
  const i64 output = blockIdx.x * 8 + threadIdx.x / 32;
  float sums[1];
  rows_dot<INNER, 1>(inner, {codes, scales, HIDDEN}, output, sums);
  if (output < HIDDEN && threadIdx.x % 32 == 0) out[output] = to_bf16(sums[0]);
}
#endif
#endif

// ---- Any matrix ----

constexpr int CHUNK = 4096;  // inputs that a block keeps at a time
constexpr int CHUNK_READS = CHUNK / PER_READ;

// out[token] = x[token] @ weights.T + bias, for few tokens. 256 threads, two outputs per warp: grid [outputs / 16, tokens].
extern "C" __global__ void __launch_bounds__(256)
    product(const u16* x, const uint4* codes, const u16* scales, const u16* bias, u16* out, i64 outputs, i64 inputs) {
  __shared__ __align__(16) float staged[CHUNK_READS * STRIDE];
  __shared__ float corrections[BITS == 4 ? CHUNK_READS : 1];
  const i64 reads = (inputs + PER_READ - 1) / PER_READ, groups = (inputs + GROUP - 1) / GROUP;
  const i64 output = (i64(blockIdx.x) * 8 + threadIdx.x / 32) * 2, last = outputs - 1;
  const i64 rows[2] = {output < last ? output : last, output + 1 < last ? output + 1 : last};
  x += blockIdx.y * inputs, out += blockIdx.y * outputs;
  float sums[2] = {};
  for (i64 first = 0; first < inputs; first += CHUNK) {
    const int count = int(inputs - first < CHUNK ? inputs - first : CHUNK), here = divide_up(count, PER_READ);
    __syncthreads();
    for (int at = 2 * threadIdx.x; at < here * PER_READ; at += 512)
      stage_pair(staged, at, at < count ? wide(x[first + at]) : 0, at + 1 < count ? wide(x[first + at + 1]) : 0);
    stage_corrections(staged, corrections, here);
#pragma unroll 2
    for (int at = threadIdx.x % 32; at < here; at += 32) {
      const i64 read = first / PER_READ + at;
      uint4 words[2];
      float factors[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        words[r] = read_once(codes + rows[r] * reads + read);
        factors[r] = wide(__ldg(scales + rows[r] * groups + read * PER_READ / GROUP));
      }
      add_read<2>(words, factors, staged + at * STRIDE, BITS == 4 ? corrections[at] : 0.0f, sums);
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = warp_sum(sums[r]);
    if (threadIdx.x % 32 == 0 && output + r < outputs)
      out[output + r] = to_bf16(bias ? sum + wide(bias[output + r]) : sum);
  }
}

// Rows of codes to bf16 [rows, inputs]: code times scale, rounded once. A thread has eight neighbouring inputs.
extern "C" __global__ void widen(const u32* codes, const u16* scales, u16* out, i64 rows, i64 inputs) {
  const u32 eights = u32(inputs + 7) / 8, index = blockIdx.x * blockDim.x + threadIdx.x;
  const u32 row = index / eights, at = index % eights * 8;
  if (row >= rows) return;
  const i64 row_words = (inputs + PER_READ - 1) / PER_READ * 4, groups = (inputs + GROUP - 1) / GROUP;
  const float scale = wide(scales[row * groups + at / GROUP]);
  const u32* from = codes + row * row_words + at / PER_WORD;
  u16 values[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    int code;
    if constexpr (BITS == 8)
      code = int(from[i / 4] << (24 - i % 4 * 8)) >> 24;
    else
      code = int(from[0] >> (i / 2 * 4 + i % 2 * 16) & 15) - 8;
    values[i] = to_bf16(code * scale);
  }
  u16* to = out + row * inputs + at;
  if (inputs % 8 == 0) {
    uint4 packed;
    packed.x = values[0] | u32(values[1]) << 16, packed.y = values[2] | u32(values[3]) << 16;
    packed.z = values[4] | u32(values[5]) << 16, packed.w = values[6] | u32(values[7]) << 16;
    *reinterpret_cast<uint4*>(to) = packed;
    return;
  }
  for (int i = 0; i < 8 && at + i < inputs; ++i) to[i] = values[i];
}
