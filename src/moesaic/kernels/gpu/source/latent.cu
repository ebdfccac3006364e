// Around the attention of latent layers. Compiled at run time for one model; every constant in
// capitals is a macro: HEADS, HEAD_WIDTH of a query, ROPE_DIM of it at its end, RANK of a latent, LATENT_EPS of its
// norm, INTERLEAVED. Kernels of one token also want VALUE_WIDTH of a head. Rounding follows models/attentions/rope.py and
// models/norm.py.

#include "cached_row.h"
#include "device.h"
#include "numbers.h"
#include "row_reads.h"

constexpr int HALF = ROPE_DIM / 2;

// The value at `at` of ROPE_DIM values, turned; `turn`: HALF cosines, then HALF sines.
__device__ __forceinline__ float turned_value(const u16* from, int at, const float* turn) {
#if INTERLEAVED
  const float even = wide(from[at & ~1]), odd = wide(from[at | 1]), cos = turn[at / 2], sin = turn[HALF + at / 2];
  return at & 1 ? odd * cos + even * sin : even * cos - odd * sin;
#else
  // Products are rounded before they are added, as PyTorch's bf16 tensors are.
  const int pair = at % HALF;
  const float first = wide(from[pair]), second = wide(from[pair + HALF]);
  const float cos = rounded(turn[pair]), sin = rounded(turn[HALF + pair]);
  return at < HALF ? rounded(first * cos) - rounded(second * sin) : rounded(second * cos) + rounded(first * sin);
#endif
}

// A head's rotary part, by a block.
__device__ __forceinline__ void turn_query(const u16* from, const float* turn, u16* turned) {
  for (int at = threadIdx.x; at < ROPE_DIM; at += blockDim.x) turned[at] = to_bf16(turned_value(from, at, turn));
}

// A token's latent, normalised, and the key that all heads share, turned, by a block.
__device__ __forceinline__ void store_latent(const u16* from, const u16* norm, const float* turn, u16* latent, u16* key) {
  float square = 0;
  for (int at = threadIdx.x; at < RANK; at += blockDim.x) square += wide(from[at]) * wide(from[at]);
  const float scale = rsqrtf(block_sum(square) / RANK + LATENT_EPS);
  for (int at = threadIdx.x; at < RANK; at += blockDim.x)
    latent[at] = to_bf16(wide(norm[at]) * rounded(wide(from[at]) * scale));
  for (int at = threadIdx.x; at < ROPE_DIM; at += blockDim.x) key[at] = to_bf16(turned_value(from + RANK, at, turn));
}

// Turns the rotary parts of queries and of the key that all heads share, normalises the latent, and writes latent and
// key into their caches [blocks, KV_BLOCK, RANK or ROPE_DIM]. A block per token and head, and one more for latent and
// key: grid [HEADS + 1, tokens]. `query` [tokens, HEADS, HEAD_WIDTH]; `compressed` [tokens, RANK + ROPE_DIM]; `turned`
// [tokens, HEADS, ROPE_DIM]. Tokens beyond `active` leave the caches as they are.
extern "C" __global__ void turn_store(const u16* query, const u16* compressed, const u16* norm, const float* turns,
                                      const i64* slots, const i64* positions, const i64* active, u16* turned,
                                      u16* latents, u16* keys, const int* table, i64 of_slot) {
  const i64 token = blockIdx.y, position = positions[token];
  const int head = blockIdx.x;
  const float* turn = turns + position * ROPE_DIM;
  await_previous();
  release_next();
  if (head < HEADS) {
    const i64 row = token * HEADS + head;
    turn_query(query + row * HEAD_WIDTH + HEAD_WIDTH - ROPE_DIM, turn, turned + row * ROPE_DIM);
  } else if (token < *active) {
    const i64 cached = cached_row(table + slots[token] * of_slot, position);
    store_latent(compressed + token * (RANK + ROPE_DIM), norm, turn, latents + cached * RANK, keys + cached * ROPE_DIM);
  }
}

#ifdef VALUE_WIDTH
// ---- One token: weights are read before the kernel in front has ended ----

constexpr int PLAIN = HEAD_WIDTH - ROPE_DIM;
constexpr int WARPS = 8;
constexpr int TILE = 64;  // of a latent: two neighbours per lane
constexpr int TILES = RANK / TILE;
constexpr int MOST_PIECES = 64;  // that a sequence is cut into (kernels/gpu/latent_attention.py)

// The same for one token, and its queries taken to the latents' space: queries[head] = query[head] @ expand[head], whose
// first PLAIN rows [RANK] are keys. 256 threads, TILE values of a head: grid [HEADS * TILES + 1]. `expand` [HEADS, PLAIN
// + VALUE_WIDTH, RANK].
extern "C" __global__ void __launch_bounds__(256)
    absorb_one(const u16* query, const u16* compressed, const u16* norm, const float* turns, const i64* slots,
               const i64* positions, const i64* active, const u16* expand, u16* queries, u16* turned, u16* latents,
               u16* keys, const int* table, i64 of_slot) {
  constexpr int each = (PLAIN + WARPS - 1) / WARPS;
  __shared__ float plain[PLAIN];
  __shared__ float sums[WARPS][TILE];
  const int head = blockIdx.x / TILES, tile = blockIdx.x % TILES, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  u32 words[each];
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int row = warp * each + i;
    if (head < HEADS && row < PLAIN) {
      const i64 at = (i64(head) * (PLAIN + VALUE_WIDTH) + row) * RANK + tile * TILE + lane * 2;
      words[i] = __ldg(reinterpret_cast<const u32*>(expand + at));
    }
  }
  const i64 position = positions[0], cached = cached_row(table + slots[0] * of_slot, position);
  const float* turn = turns + position * ROPE_DIM;
  const bool stored = *active > 0;
  await_previous();
  release_next();
  if (head == HEADS) {
    if (stored) store_latent(compressed, norm, turn, latents + cached * RANK, keys + cached * ROPE_DIM);
    return;
  }
  const u16* from = query + head * HEAD_WIDTH;
  if (tile == 0) turn_query(from + PLAIN, turn, turned + head * ROPE_DIM);
  for (int at = threadIdx.x; at < PLAIN; at += 256) plain[at] = wide(from[at]);
  __syncthreads();
  float low = 0, high = 0;
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int row = warp * each + i;
    if (row < PLAIN) low += plain[row] * wide(u16(words[i])), high += plain[row] * wide(u16(words[i] >> 16));
  }
  sums[warp][2 * lane] = low, sums[warp][2 * lane + 1] = high;
  __syncthreads();
  if (threadIdx.x >= TILE) return;
  float sum = 0;
  for (int w = 0; w < WARPS; ++w) sum += sums[w][threadIdx.x];
  queries[head * RANK + tile * TILE + threadIdx.x] = to_bf16(sum);
}

// Joins the pieces of a token's attention (kernels/gpu/attention.py), and takes what every head has mixed back to values:
// values[head] = expand[head] @ mixed[head], by its last VALUE_WIDTH rows. 256 threads, two values per warp: grid
// [HEADS * VALUE_WIDTH / 16]. `mixed` [HEADS, pieces, RANK], `tops` and `sums` [HEADS, pieces]; a piece has so many
// positions.
extern "C" __global__ void __launch_bounds__(256)
    expand_one(const float* mixed, const float* tops, const float* sums, const i64* positions, i64 pieces, i64 piece,
               const u16* expand, u16* values) {
  __shared__ __align__(16) float inputs[RANK];
  __shared__ float weights[MOST_PIECES], total;
  constexpr int rows = 2, blocks = VALUE_WIDTH / (WARPS * rows);
  const int head = blockIdx.x / blocks, first = (blockIdx.x % blocks * WARPS + threadIdx.x / 32) * rows;
  const u16* row = expand + (i64(head) * (PLAIN + VALUE_WIDTH) + PLAIN + first) * RANK;
  RowReads<RANK> reads[rows];
  for (int r = 0; r < rows; ++r) reads[r].read(row + r * RANK);
  const int used = int(positions[0] / piece) + 1;
  await_previous();
  release_next();
  tops += head * pieces, sums += head * pieces, mixed += head * pieces * RANK;
  if (threadIdx.x < 32) {
    float top = tops[0], sum = 0;
    for (int p = threadIdx.x; p < used; p += 32) top = fmaxf(top, tops[p]);
    for (int step = 16; step; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
    for (int p = threadIdx.x; p < used; p += 32) sum += sums[p] * (weights[p] = expf(tops[p] - top));
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (threadIdx.x == 0) total = sum;
  }
  __syncthreads();
  for (int at = threadIdx.x; at < RANK; at += 256) {
    float sum = 0;
#pragma unroll 8
    for (int p = 0; p < used; ++p) sum += mixed[p * RANK + at] * weights[p];
    inputs[at] = rounded(sum / total);
  }
  __syncthreads();
  for (int r = 0; r < rows; ++r) {
    const float value = reads[r].dot(row + r * RANK, inputs);
    if (threadIdx.x % 32 == 0) values[head * VALUE_WIDTH + first + r] = to_bf16(value);
  }
}
#endif
