// The memory of one decode step besides weights and KV cache, and how sequences are cut for attention.
#pragma once

#include <algorithm>
#include <vector>

#include "layer/workspace.h"
#include "linear/product_phase.h"
#include "step/description.h"

namespace moesaic {

constexpr int kMaxStepTokens = kMemoryBoundTokens;
constexpr int kMaxStepExperts = kMemoryBoundRows / kMaxStepTokens;  // that a token uses
constexpr int kLatentHeads = 4;  // that one item of latent attention computes together

// How one token's sequence is cut. It depends on the sequence's length alone, never on the batch or on the
// number of workers: the order of summation must not.
struct Parts {
  int length, positions, count;  // of the sequence with the new token; of a part; parts
  int first_item;                // of the token, among the items of attention
  std::size_t first_scalar;      // of the token in `largest` and `sums`; times the width in `mixed`

  explicit Parts(int length_) : length(length_), first_item(0), first_scalar(0) {
    constexpr int kFewest = 32;
    positions = std::max(kFewest, divide_up(divide_up(length, kMaxAttentionParts), 16) * 16);
    count = divide_up(length, positions);
  }
};

struct StepBuffers {
  std::uint16_t *residual, *normed, *query, *key, *value, *query_down;
  std::uint16_t *attended, *routed_sum, *shared_sum;
  float *wide_query, *rope_query, *absorbed;  // latent: [token][head][plain], [..][rope], [..][rank]
  std::uint16_t* mixed_latent;                // [token][head][rank]
  float *largest, *sums, *mixed;              // of all parts
  float* shared_gate;                         // [token]
  float *cos, *sin;                           // [token][rope_dim / 2]
  std::int64_t* padded_ids;                   // [token][top_k]
  PanelBuffer panel;
  std::uint8_t* workers;
  std::size_t worker_bytes, score_bytes;  // of a worker's memory; of attention's scores, which come first
  int heads_at_once;  // query heads of one item of attention
  std::vector<Parts> parts;

  StepBuffers(const StepSizes& sizes, int top_k, const StepCall& call, int worker_slots,
              Workspace& workspace) {
    heads_at_once = sizes.latent() ? std::min(kLatentHeads, sizes.heads) : sizes.heads / sizes.kv_heads;
    std::size_t scalars = 0;
    int longest = 0, items = 0;
    for (int t = 0; t < call.tokens; ++t) {
      Parts one(int(call.positions[t]) + 1);
      one.first_item = items;
      one.first_scalar = scalars;
      items += groups(sizes) * one.count;
      scalars += std::size_t(groups(sizes)) * one.count * heads_at_once;
      longest = std::max(longest, one.positions);
      parts.push_back(one);
    }
    score_bytes = round_up(std::size_t(heads_at_once) * longest * sizeof(float));
    const std::size_t values = std::size_t(heads_at_once + 1) * sizes.head_dim;  // a group's queries, and one
    worker_bytes = std::max(ProductPhase::worker_bytes(call.tokens), score_bytes + round_up(values * 4));
    Sizer sizer;
    place(sizes, top_k, call.tokens, scalars, worker_slots, sizer);
    workspace.reset(sizer.bytes);
    Taker taker{workspace};
    place(sizes, top_k, call.tokens, scalars, worker_slots, taker);
  }

  int groups(const StepSizes& sizes) const { return divide_up(sizes.heads, heads_at_once); }

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
  void place(const StepSizes& sizes, int top_k, int tokens, std::size_t scalars, int worker_slots,
             Place& to) {
    const std::size_t rows = tokens, hidden = rows * sizes.hidden, heads = rows * sizes.heads;
    for (std::uint16_t** each : {&residual, &normed, &routed_sum, &shared_sum}) to(*each, hidden);
    to(query, rows * sizes.queries());
    to(key, rows * (sizes.keys() + sizes.rope_key_dim));
    to(value, rows * sizes.keys());
    to(query_down, rows * sizes.query_rank);
    to(attended, rows * sizes.attended());
    to(wide_query, heads * sizes.plain_dim);
    to(rope_query, heads * sizes.rope_key_dim);
    to(absorbed, heads * sizes.rank);
    to(mixed_latent, heads * sizes.rank);
    to(largest, scalars);
    to(sums, scalars);
    to(mixed, scalars * (sizes.latent() ? sizes.rank : sizes.head_dim));
    to(shared_gate, rows);
    to(cos, rows * (sizes.rope_dim / 2));
    to(sin, rows * (sizes.rope_dim / 2));
    to(padded_ids, rows * top_k);
    const int widest = std::max({sizes.hidden, sizes.attended(), sizes.query_rank});
    std::uint8_t* memory = nullptr;
    to(memory, PanelBuffer::bytes(tokens, widest));
    panel = PanelBuffer::at(memory, tokens, widest);
    to(workers, worker_bytes * worker_slots);
  }
};

}  // namespace moesaic
