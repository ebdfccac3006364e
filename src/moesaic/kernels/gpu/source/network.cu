// Small kernels of a decode step, fused so that a layer takes few launches. Compiled at run time for one model; every
// constant in capitals is a macro. Rounding follows the PyTorch modules in models/: norms and sums in fp32, rounded to
// bf16 where those round.

#include "cached_row.h"
#include "device.h"
#include "flags.h"
#include "numbers.h"
#include "reads.h"
#include "row_reads.h"

#define INFINITY __int_as_float(0x7f800000)

// The GPU's own clock, in nanoseconds.
__device__ __forceinline__ u64 gpu_time() {
  u64 time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
}

// When everything in front of it has ended. One thread.
extern "C" __global__ void stamp(u64* ended) { *ended = gpu_time(); }

// A step's times to the host, when everything in front of it has ended; `ended`: which of them says that.
extern "C" __global__ void leave_stamps(const u64* from, u64* to, i64 words, const u64* ended) {
  const i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < words) to[i] = from + i == ended ? gpu_time() : from[i];
}

// A launch begins when the conductor says so; the next one waits for its own word. One thread.
extern "C" __global__ void await_start(u32* flag) {
  await_flag(flag, 1, 0);
  raise_flag(flag, 0);
}

constexpr int PER_THREAD = (HIDDEN + 255) / 256;

// stream[token] holds HIDDEN values in registers: normalises them into `out`.
__device__ void norm_into(const float (&values)[PER_THREAD], const u16* weight, u16* out) {
  float square = 0;
  for (int i = 0; i < PER_THREAD; ++i) square += values[i] * values[i];
  const float scale = rsqrtf(block_sum(square) / HIDDEN + NORM_EPS);
  for (int i = 0; i < PER_THREAD; ++i) {
    const int at = threadIdx.x + i * 256;
    if (at < HIDDEN) out[at] = to_bf16(wide(weight[at]) * rounded(values[i] * scale));
  }
}

// Words from pinned memory to the GPU's: later kernels read them faster. A word per thread: reads over the link are
// many at a time or slow. Where a flag is given, they are there when it is `number`; kernels that follow leave the GPU to
// others until then. `arrived` and `begun`, where they are given: when everything in front had ended, and when the words
// were there.
extern "C" __global__ void fetch(const i64* from, i64* to, i64 words, u64* arrived, u64* begun, const u32* flag,
                                 i64 number) {
  const i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (arrived && i == 0) *arrived = gpu_time();
  if (flag) await_flag(flag, u32(number), u32(number) - 1);
  release_next();
  if (begun && i == 0) *begun = gpu_time();
  if (i < words) to[i] = static_cast<const volatile i64*>(from)[i];
}

// A step's tokens into the table of blocks, which has what is in front of them. A thread per token.
extern "C" __global__ void enter_blocks(const i64* slots, const i64* positions, const i64* blocks, const i64* active,
                                        int* table, i64 of_slot) {
  const i64 token = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (token < *active) table[slots[token] * of_slot + positions[token] / KV_BLOCK] = int(blocks[token]);
}

// stream += addend (where there is one); out = norm(stream). One block of 256 threads per token.
extern "C" __global__ void add_norm(u16* stream, const u16* addend, const u16* weight, u16* out) {
  const i64 row = i64(blockIdx.x) * HIDDEN;
  float values[PER_THREAD];
  for (int i = 0; i < PER_THREAD; ++i) {
    const int at = threadIdx.x + i * 256;
    values[i] = at < HIDDEN ? wide(stream[row + at]) : 0.0f;
    if (at < HIDDEN && addend) {
      values[i] = rounded(values[i] + wide(addend[row + at]));
      stream[row + at] = to_bf16(values[i]);
    }
  }
  norm_into(values, weight, out + row);
}

// stream += the experts' sum, of the GPU's parts and the CPU's, and shared experts where there are any. A thread per
// value: grid [HIDDEN / 256, tokens]. `table` is the GPU's copy, in which weights begin at word `shares_at`; `cpu_sum` is
// pinned memory, fp32 or (`narrow`) bf16, and where a flag is given, it is there when that is `number`. `computed` and
// `begun`, where they are given: when the GPU's parts and when both were there.
extern "C" __global__ void combine(const i64* table, i64 shares_at, const float* parts, const void* cpu_sum, i64 narrow,
                                   const u16* shared, u16* stream, u64* begun, const u32* flag, i64 number,
                                   u64* computed) {
  const i64 token = blockIdx.y;
  const int at = blockIdx.x * 256 + threadIdx.x;
  release_next();
  // While the experts end: a look over the link, and what was there before them.
  const u32 seen = flag && threadIdx.x == 0 ? read_flag(flag) : 0;
  const bool on_cpu = table[2] != 0;
  await_previous();
  const bool first = token == 0 && at == 0;
  if (computed && first) *computed = gpu_time();
  if (flag && on_cpu) await_flag(flag, u32(number), seen);
  if (begun && first) *begun = gpu_time();
  if (at >= HIDDEN) return;
  const float* shares = reinterpret_cast<const float*>(table + shares_at) + token * TOP_K;
  float total = 0.0f;
  if (on_cpu)
    total = narrow ? wide(static_cast<const volatile u16*>(cpu_sum)[token * HIDDEN + at])
                   : static_cast<const volatile float*>(cpu_sum)[token * HIDDEN + at];
  float values[TOP_K];
#pragma unroll
  for (int k = 0; k < TOP_K; ++k) values[k] = parts[(token * TOP_K + k) * HIDDEN + at];
#pragma unroll
  for (int k = 0; k < TOP_K; ++k)
    if (shares[k] != 0.0f) total += shares[k] * values[k];  // others' values mean nothing
  total = rounded(total);
  if (shared) total = rounded(total + wide(shared[token * HIDDEN + at]));
  stream[token * HIDDEN + at] = to_bf16(wide(stream[token * HIDDEN + at]) + total);
}

#ifdef HEADS
// Normalises (where the model does) and turns queries and keys, and writes keys and values into the cache. A block per
// token and head, queries first, then keys, then values; HEAD_DIM threads. `qkv` [tokens, HEADS + 2 KV_HEADS, HEAD_DIM];
// caches [blocks, KV_BLOCK, KV_HEADS, HEAD_DIM]; `turns` [positions, 2, ROPE_DIM / 2]: cosines and sines. Tokens beyond
// `active` leave the cache as it is. A step's inputs and weights are read while the projections end.
extern "C" __global__ void rotate_store(const u16* qkv, const u16* query_norm, const u16* key_norm, const float* turns,
                                        const i64* slots, const i64* positions, const i64* active, u16* queries,
                                        u16* keys, u16* values, const int* table, i64 of_slot) {
  constexpr int half = ROPE_DIM / 2;
  const i64 token = blockIdx.y;
  const int head = blockIdx.x, at = threadIdx.x, pair = at % half;
  const bool stored = head < HEADS || token < *active;
  const i64 position = positions[token];
  const u16* norm = head < HEADS ? query_norm : key_norm;
  const float weight = norm ? wide(norm[at]) : 0.0f;
  const float cos = rounded(turns[position * ROPE_DIM + pair]), sin = rounded(turns[position * ROPE_DIM + half + pair]);
  const i64 cached = cached_row(table + slots[token] * of_slot, position) * KV_HEADS * HEAD_DIM;
  await_previous();
  release_next();
  if (!stored) return;
  const u16* from = qkv + (token * (HEADS + 2 * KV_HEADS) + head) * HEAD_DIM;
  if (head >= HEADS + KV_HEADS) {
    values[cached + (head - HEADS - KV_HEADS) * HEAD_DIM + at] = from[at];
    return;
  }
  __shared__ float turned[HEAD_DIM];
  float value = wide(from[at]);
  if (norm) {
    const float scale = rsqrtf(block_sum(value * value) / HEAD_DIM + NORM_EPS);
    value = rounded(weight * rounded(value * scale));
  }
  turned[at] = value;
  __syncthreads();
  if (at < ROPE_DIM) {
    const float first = turned[pair], second = turned[pair + half];
    // Products are rounded before they are added, as PyTorch's bf16 tensors are.
    value = at < half ? rounded(rounded(first * cos) - rounded(second * sin))
                      : rounded(rounded(second * cos) + rounded(first * sin));
  }
  if (head < HEADS)
    queries[(token * HEADS + head) * HEAD_DIM + at] = to_bf16(value);
  else
    keys[cached + (head - HEADS) * HEAD_DIM + at] = to_bf16(value);
}
#endif

#include "router.h"

// Experts and weights for a batch, written to pinned memory with the hidden states, where those have a place there. A block
// of 128 threads per token: one warp chooses, the others copy. Tokens beyond `active` choose no expert, others as many as `counts` has for them.
extern "C" __global__ void route(const void* logits, const float* bias, const u16* x, const i64* active,
                                 const i64* counts, const i64* replay, const float* replay_scores,
                                 const float* replay_weights, u16* hidden, i64* ids, float* weights, i64* ranked,
                                 float* ranked_scores) {
  const i64 token = blockIdx.x;
  if (threadIdx.x >= 32) {
    if (!hidden) return;
    const uint4* from = reinterpret_cast<const uint4*>(x + token * HIDDEN);
    uint4* to = reinterpret_cast<uint4*>(hidden + token * HIDDEN);
    for (int i = threadIdx.x - 32; i < HIDDEN / 8; i += 96) to[i] = from[i];
    return;
  }
  const int lane = threadIdx.x;
  const Choice to = of_token(token, ids, weights, ranked, ranked_scores);
  if (token >= *active) {
    for (int i = lane; i < TOP_K; i += 32) to.ids[i] = -1, to.weights[i] = 0;
    for (int i = lane; i < RANKS; i += 32) to.ranked[i] = -1, to.scores[i] = 0;
    return;
  }
  const int count = int(counts[token]);
  if (replay) return repeat_choice(token, replay, replay_scores, replay_weights, count, to);
  float scores[PER_LANE];
  for (int i = 0; i < PER_LANE; ++i) {
    const int expert = lane + 32 * i;
    scores[i] = -INFINITY;
    if (expert < EXPERTS)
#if LOGITS_FP32
      scores[i] = static_cast<const float*>(logits)[token * EXPERTS + expert];
#else
      scores[i] = wide(static_cast<const u16*>(logits)[token * EXPERTS + expert]);
#endif
  }
  choose(scores, bias, count, to);
}

// What the gates of later layers say: logits [tokens, layers, EXPERTS] to the best experts and their scores
// [layers, rows, TOP_K], in pinned memory. A warp per token and layer: grid [tokens, layers]. `biases` [layers, EXPERTS].
extern "C" __global__ void forecast(const u16* logits, const float* biases, const i64* active, i64* ids, float* to_scores,
                                    i64 rows) {
  const int lane = threadIdx.x;
  const i64 token = blockIdx.x, layer = blockIdx.y, to = (layer * rows + token) * TOP_K;
  if (token >= *active) return;
  const u16* from = logits + (token * gridDim.y + layer) * EXPERTS;
  float scores[PER_LANE], preference[PER_LANE];
  for (int i = 0; i < PER_LANE; ++i) scores[i] = lane + 32 * i < EXPERTS ? wide(from[lane + 32 * i]) : -INFINITY;
  softmax_or_sigmoid(scores);
  prefer(scores, biases ? biases + layer * EXPERTS : nullptr, preference);
  for (int rank = 0; rank < TOP_K; ++rank) {
    const Best best = take_best(preference, scores);
    if (lane == rank) ids[to + rank] = best.expert, to_scores[to + rank] = best.score;
  }
}

// ---- Products with one token ----

// A norm's weights in registers: read before the stream is there.
struct NormWeights {
  u32 pairs[(PER_THREAD + 1) / 2] = {};

  __device__ __forceinline__ void read(const u16* weight) {
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
      const int at = threadIdx.x + i * 256;
      if (at < HIDDEN) pairs[i / 2] |= u32(__ldg(weight + at)) << i % 2 * 16;
    }
  }
  __device__ __forceinline__ float value(int i) const { return wide(u16(pairs[i / 2] >> i % 2 * 16)); }
};

// norm(stream) in fp32 (values are bf16) in shared memory.
__device__ __forceinline__ void stage_normed(const u16* stream, const NormWeights& weights, float* inputs) {
  float values[PER_THREAD], square = 0;
#pragma unroll
  for (int i = 0; i < PER_THREAD; ++i) {
    const int at = threadIdx.x + i * 256;
    values[i] = at < HIDDEN ? wide(stream[at]) : 0.0f;
    square += values[i] * values[i];
  }
  const float scale = rsqrtf(block_sum(square) / HIDDEN + NORM_EPS);
#pragma unroll
  for (int i = 0; i < PER_THREAD; ++i) {
    const int at = threadIdx.x + i * 256;
    if (at < HIDDEN) inputs[at] = rounded(weights.value(i) * rounded(values[i] * scale));
  }
  __syncthreads();
}

// HIDDEN values as bf16, by a block.
__device__ void store_pairs(const float* values, u16* to) {
  for (int i = threadIdx.x; i < HIDDEN / 2; i += 256)
    reinterpret_cast<u32*>(to)[i] = to_bf16(values[2 * i]) | u32(to_bf16(values[2 * i + 1])) << 16;
}

// out = norm(stream) @ weights.T + bias. 256 threads; a warp computes `each` outputs that stand side by side.
extern "C" __global__ void __launch_bounds__(256, 3) normed_product(const u16* stream, const u16* norm, const u16* weights,
                                                                 const u16* bias, u16* out, i64 outputs, i64 each) {
  __shared__ __align__(16) float inputs[HIDDEN];
  i64 output = (i64(blockIdx.x) * 8 + threadIdx.x / 32) * each;
  RowReads<HIDDEN> reads;
  if (output < outputs) reads.read(weights + output * HIDDEN);
  NormWeights norms;
  norms.read(norm);
  await_previous();
  release_next();
  stage_normed(stream, norms, inputs);
  for (i64 end = output + each; output < end && output < outputs; ++output) {
    float sum = reads.dot(weights + output * HIDDEN, inputs);
    if (output + 1 < end && output + 1 < outputs) reads.read(weights + (output + 1) * HIDDEN);
    if (bias) sum += wide(bias[output]);
    if (threadIdx.x % 32 == 0) out[output] = to_bf16(sum);
  }
}

#ifdef ATTENDED
// stream += attended @ weights.T + bias: attention's output projection of one token, ATTENDED wide. 256 threads, an output per warp.
extern "C" __global__ void __launch_bounds__(256) add_product(const u16* attended, const u16* weights, const u16* bias,
                                                              u16* stream) {
  const int output = blockIdx.x * 8 + threadIdx.x / 32;
  float sum = row_dot<ATTENDED>(attended, weights, output, HIDDEN);
  if (output >= HIDDEN || threadIdx.x % 32) return;
  if (bias) sum += wide(bias[output]);
  stream[output] = to_bf16(wide(stream[output]) + rounded(sum));
}
#endif

// The router of one token, from the residual stream to the mailbox: x = norm(stream), logits, choice. An expert per
// warp; the block that ends last chooses, as many as `counts` says, and raises `flag`. `logits` [EXPERTS] and `ended` are
// scratch; `ended` is 0 before and after. `routed`, where it is given: when the choice was made.
extern "C" __global__ void __launch_bounds__(256)
    route_one(const u16* stream, const u16* norm, const u16* router, const float* bias, u16* x, float* logits, int* ended,
              const i64* counts, const i64* replay, const float* replay_scores, const float* replay_weights, u16* hidden,
              i64* ids, float* weights, i64* ranked, float* ranked_scores, u64* routed, u32* flag, i64 number) {
  __shared__ __align__(16) float inputs[HIDDEN];
  __shared__ bool last;
  const int expert = blockIdx.x * 8 + threadIdx.x / 32;
  RowReads<HIDDEN> reads;
  if (expert < EXPERTS) reads.read(router + i64(expert) * HIDDEN);
  NormWeights norms;
  norms.read(norm);
  await_previous();
  release_next();
  stage_normed(stream, norms, inputs);
  if (blockIdx.x == 0) store_pairs(inputs, x);
  if (expert < EXPERTS) {
    const float sum = reads.dot(router + i64(expert) * HIDDEN, inputs);
    if (threadIdx.x % 32 == 0) logits[expert] = LOGITS_FP32 ? sum : rounded(sum);
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(ended, 1) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  if (threadIdx.x == 0) *ended = 0;
  const Choice to = of_token(0, ids, weights, ranked, ranked_scores);
  if (threadIdx.x < 32) {
    if (replay) {
      repeat_choice(0, replay, replay_scores, replay_weights, int(counts[0]), to);
    } else {
      __threadfence();
      float scores[PER_LANE];
      for (int i = 0; i < PER_LANE; ++i) {
        const int at = threadIdx.x + 32 * i;
        scores[i] = at < EXPERTS ? static_cast<const volatile float*>(logits)[at] : -INFINITY;
      }
      choose(scores, bias, int(counts[0]), to);
    }
  }
  store_pairs(inputs, hidden);  // by the block that raises the flag: it need not wait for another's writes
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x) return;
  if (routed) *routed = gpu_time();
  raise_flag(flag, u32(number));
}
