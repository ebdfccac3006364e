// A network as a decode step reads it: sizes, rules, and addresses of weights, which belong to the caller.
// moesaic/machines/cpu_step/step_description.py fills it in from a decoder.
#pragma once

#include <algorithm>
#include <vector>

#include "layer/layer.h"
#include "linear/packed_matrix.h"
#include "products/step_kernels.h"
#include "router/router.h"

namespace moesaic {

enum class QkNorm : int { none = 0, head = 1, projection = 2 };

struct StepSizes {
  int hidden = 0, vocabulary = 0;
  float eps = 0;  // of the norms between attention and feed-forward
  int activation = 0;
  // The intermediate width of routed experts, shared experts and dense layers (0: none), and the precision of
  // the first and of the other two; and that of attention's projections.
  int expert_width = 0, shared_width = 0, dense_width = 0;
  int expert_dtype = 0, network_dtype = 0, attention_dtype = 0;
  int tiles_from_bf16 = 0, tiles_from_int8 = 0, tiles_from_int4 = 0;
};

// Rotary positions over the first `dim` values of a head.
struct StepRope {
  int dim = 0;
  bool interleaved = false;
  float magnitude = 1;                 // multiplies cosines and sines
  const float* frequencies = nullptr;  // [dim / 2]: angle per position
};

constexpr int kLatentHeads = 4;  // that one item of latent attention computes together

// The attention of one layer.
struct StepAttention {
  int heads = 0, kv_heads = 0, head_dim = 0;
  // Latent attention; rank 0: grouped-query attention.
  int rank = 0, query_rank = 0, plain_dim = 0, rope_key_dim = 0, value_dim = 0;
  int rope = 0;  // which of the network's rotations
  int qk_norm = 0;
  float clip = 0;  // 0: none
  float scale = 1;
  float eps = 0;  // of the norms inside it

  bool latent() const { return rank > 0; }
  int queries() const { return heads * head_dim; }
  int keys() const { return latent() ? rank : kv_heads * head_dim; }  // the width of the cache's first rows
  int second_keys() const { return latent() ? rope_key_dim : keys(); }
  int attended() const { return heads * (latent() ? value_dim : head_dim); }
  int mixed() const { return latent() ? rank : head_dim; }  // the width of what a head mixes
  // Query heads that one item of attention computes together, and the number of such groups.
  int heads_at_once() const { return latent() ? std::min(kLatentHeads, heads) : heads / kv_heads; }
  int cached_heads() const { return latent() ? 1 : kv_heads; }  // with a scale each, where the cache has codes
  int groups() const { return (heads + heads_at_once() - 1) / heads_at_once(); }
};

// bf16 unless another type is given; null where the family has no such thing.
struct StepLayer {
  StepAttention attention;
  const std::uint16_t *attention_norm = nullptr, *feed_forward_norm = nullptr;
  // Grouped-query attention: query, key, value. Latent attention: `query` is the projection to all heads
  // (from the normalised bottleneck if there is one), `key` compresses to latent and rotary key.
  PackedMatrix query, key, value, output;
  const std::uint16_t *query_bias = nullptr, *key_bias = nullptr, *value_bias = nullptr;
  const std::uint16_t* output_bias = nullptr;
  const std::uint16_t *query_norm = nullptr, *key_norm = nullptr;  // key_norm: also of the latent
  PackedMatrix query_down;                                         // the bottleneck; query_norm is its norm
  const std::uint16_t* query_down_bias = nullptr;
  const std::uint16_t* expand = nullptr;  // [heads, plain_dim + value_dim, rank]
  // Routed layers: router, and the addresses of all experts' blocks. None: a dense layer.
  const std::uint16_t* gate = nullptr;
  const float* gate_bias = nullptr;
  const std::uintptr_t* experts = nullptr;
  const std::uint8_t* network = nullptr;  // the block of the dense layer or of the shared experts
  const std::uint16_t* shared_gate = nullptr;

  int routed_number = -1;  // among the routed layers

  bool routed() const { return gate != nullptr; }
  bool adds_two() const { return routed() && network; }  // routed and shared experts
};

struct StepNetwork {
  StepSizes sizes;
  RouterConfig router;
  std::vector<StepLayer> layers;
  const std::uint16_t *embedding = nullptr, *norm = nullptr;
  PackedMatrix head;
  std::vector<StepRope> ropes;
};

// One vector of every slot and position: bf16, or int8 codes with a scale in fp16 for every KV head (see kv_codes.h).
struct StepCached {
  std::uint16_t* values = nullptr;  // [blocks, kCacheBlock, width]
  std::int8_t* codes = nullptr;     // instead, of the same shape
  std::uint16_t* scales = nullptr;  // [blocks, kCacheBlock, heads]; of a latent: one

  // From a head's first column on, of `heads` in a row of so many values.
  CacheRows from(int width, int heads, int head) const {
    const std::size_t column = std::size_t(width / heads) * head, stride = width, scale_stride = heads;
    if (!codes) return {values + column, nullptr, nullptr, stride, 0};
    return {nullptr, codes + column, scales + head, stride, scale_stride};
  }
};

// What a layer keeps: keys and values, or latents and rotary keys, which are never codes.
struct StepLayerCache {
  StepCached first, second;
};

// The KV cache: blocks, and a table of those that every slot has.
struct StepCache {
  std::vector<StepLayerCache> layers;
  const std::int32_t* table = nullptr;  // [slots, blocks of a sequence of `length`]
  int slots = 0, length = 0, blocks = 0;

  const std::int32_t* blocks_of(std::int64_t slot) const {
    return table + slot * divide_up(length, kCacheBlock);
  }
};

// One step: a new token for each of some sequences. Arrays over routed layers come first of all.
struct StepCall {
  int tokens = 0;
  const std::int64_t *numbers = nullptr, *slots = nullptr, *positions = nullptr;  // [tokens]
  const std::int64_t* counts = nullptr;   // [tokens]: experts that each uses; null: all of top-k
  const std::int64_t* forced_ids = nullptr;  // [layers, tokens, top_k] to use instead of the router's choice
  const float* forced_weights = nullptr;
  std::uint16_t* logits = nullptr;    // [tokens, vocabulary]
  std::int64_t* ids = nullptr;        // [layers, tokens, top_k]; -1 beyond a token's count
  float* weights = nullptr;           // the same shape
  float* scores = nullptr;            // [layers, tokens, experts]
  float* selection_scores = nullptr;  // the same shape
  std::int64_t* times = nullptr;      // [layers, 3] ns: router began, experts began, experts ended
  // Null, or [phases, 2] ns: when a phase's preparation by one worker began and ended.
  std::int64_t* phase_times = nullptr;
};

}  // namespace moesaic
