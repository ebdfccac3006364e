// The memory of one decode step besides weights and KV cache, and how sequences are cut for attention.
#pragma once

#include <algorithm>
#include <vector>

#include "layer/workspace.h"
#include "linear/product_phase.h"
#include "step/description.h"

namespace moesaic {

constexpr int kMaxStepTokens = 128;
constexpr int kMaxStepExperts = 32;  // that a token uses

// How one token's sequence is cut. It depends on the sequence's length alone, never on the batch or on the
// number of workers: the order of summation must not.
struct Parts {
  int length, positions, count;  // of the sequence with the new token; of a part; parts
  int before;                    // parts of the tokens before this one

  Parts(int length_, int before_) : length(length_), before(before_) {
    constexpr int kFewest = 32;
    positions = std::max(kFewest, divide_up(divide_up(length, kMaxAttentionParts), 16) * 16);
    count = divide_up(length, positions);
  }

  // Of the token, among a layer's items of attention; in `largest` and `sums` (times the width in `mixed`).
  int first_item(const StepAttention& of) const { return before * of.groups(); }
  std::size_t first_scalar(const StepAttention& of) const {
    return std::size_t(first_item(of)) * of.heads_at_once();
  }
};

// The most that any layer's attention needs.
struct AttentionMaxima {
  std::size_t queries = 0, keys = 0, values = 0, bottleneck = 0, attended = 0;  // of a token
  std::size_t plain = 0, rope = 0, latents = 0;                                 // of a token, of all heads
  std::size_t groups = 0, grouped_heads = 0, mixed = 0;  // of a part: heads of all groups, what they mix
  std::size_t heads_at_once = 0, group_values = 0;       // group_values: a group's queries, and one more

  explicit AttentionMaxima(const std::vector<StepLayer>& layers) {
    for (const StepLayer& layer : layers) {
      const StepAttention& of = layer.attention;
      const std::size_t heads = of.heads, at_once = of.heads_at_once(), in_groups = of.groups() * at_once;
      most(queries, of.queries());
      most(keys, of.keys() + of.rope_key_dim);
      most(values, of.latent() ? 0 : of.keys());
      most(bottleneck, of.query_rank);
      most(attended, of.attended());
      most(plain, heads * of.plain_dim);
      most(rope, heads * of.rope_key_dim);
      most(latents, heads * of.rank);
      most(groups, of.groups());
      most(grouped_heads, in_groups);
      most(mixed, in_groups * of.mixed());
      most(heads_at_once, at_once);
      most(group_values, (at_once + 1) * of.head_dim);
    }
  }

 private:
  static void most(std::size_t& to, std::size_t value) { to = std::max(to, value); }
};

struct StepBuffers {
  std::uint16_t *residual, *normed, *query, *key, *value, *query_down;
  std::uint16_t *attended, *routed_sum, *shared_sum;
  float *wide_query, *rope_query, *absorbed;  // latent: [token][head][plain], [..][rope], [..][rank]
  std::uint16_t* mixed_latent;                // [token][head][rank]
  float *largest, *sums, *mixed;              // of all parts
  float* shared_gate;                         // [token]
  float *cos, *sin;                           // [rotation][token][dim / 2]
  std::int64_t* padded_ids;                   // [token][top_k]
  PanelBuffer panel;
  std::uint8_t* workers;
  std::size_t worker_bytes, score_bytes;  // of a worker's memory; of attention's scores, which come first
  AttentionMaxima most;
  std::vector<Parts> parts;

  StepBuffers(const StepNetwork& network, const StepCall& call, int worker_slots, Workspace& workspace)
      : most(network.layers) {
    int longest = 0, all = 0;
    for (int t = 0; t < call.tokens; ++t) {
      parts.emplace_back(int(call.positions[t]) + 1, all);
      all += parts.back().count;
      longest = std::max(longest, parts.back().positions);
    }
    score_bytes = round_up((most.heads_at_once + 1) * longest * sizeof(float));  // and scales
    worker_bytes =
        std::max(ProductPhase::worker_bytes(call.tokens), score_bytes + round_up(most.group_values * 4));
    Sizer sizer;
    place(network, call.tokens, all, worker_slots, sizer);
    workspace.reset(sizer.bytes);
    Taker taker{workspace};
    place(network, call.tokens, all, worker_slots, taker);
  }

 private:
  struct Sizer {
    std::size_t bytes = 0;
    template <class T>
    void operator()(T*&, std::size_t count) {
      bytes += round_up(count * sizeof(T));
    }
  };
  struct Taker {
    Workspace& workspace;
    template <class T>
    void operator()(T*& to, std::size_t count) {
      to = reinterpret_cast<T*>(workspace.take(count * sizeof(T)));
    }
  };

  template <class Place>
  void place(const StepNetwork& network, int tokens, std::size_t all_parts, int worker_slots, Place& to) {
    const StepSizes& sizes = network.sizes;
    const std::size_t rows = tokens, hidden = rows * sizes.hidden;
    std::size_t angles = 0;
    for (const StepRope& rope : network.ropes) angles += rope.dim / 2;
    for (std::uint16_t** each : {&residual, &normed, &routed_sum, &shared_sum}) to(*each, hidden);
    to(query, rows * most.queries);
    to(key, rows * most.keys);
    to(value, rows * most.values);
    to(query_down, rows * most.bottleneck);
    to(attended, rows * most.attended);
    to(wide_query, rows * most.plain);
    to(rope_query, rows * most.rope);
    to(absorbed, rows * most.latents);
    to(mixed_latent, rows * most.latents);
    to(largest, all_parts * most.grouped_heads);
    to(sums, all_parts * most.grouped_heads);
    to(mixed, all_parts * most.mixed);
    to(shared_gate, rows);
    to(cos, rows * angles);
    to(sin, rows * angles);
    to(padded_ids, rows * network.router.top_k);
    const int widest = int(std::max({std::size_t(sizes.hidden), most.attended, most.bottleneck}));
    std::uint8_t* memory = nullptr;
    to(memory, PanelBuffer::bytes(tokens, widest));
    panel = PanelBuffer::at(memory, tokens, widest);
    to(workers, worker_bytes * worker_slots);
  }
};

}  // namespace moesaic
