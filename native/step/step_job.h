// A decode step as one job: all layers, from token numbers to logits. Every layer is a sequence of phases
// that all workers share; what is too small to share is done between two phases by the worker that ended the
// first, while the others prefetch what they read next.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "layer/layer_job.h"
#include "linear/product_phase.h"
#include "pool/pool.h"
#include "pool/read_ahead.h"
#include "step/step_buffers.h"

namespace moesaic {

// Of all steps: what does not change, and memory that is kept from one to the next.
struct StepContext {
  StepNetwork network;
  Multiplier multiplier;
  LayerConfig experts, shared, dense;  // routed experts, shared experts, dense layers
  Workspace memory, expert_memory, network_memory;
  std::unique_ptr<RepeatedLayer> experts_layer, shared_layer, dense_layer;  // with a pool's workers
};

// The products of one phase.
struct StepProducts {
  PhaseProduct products[ProductItems::kMaxProducts];
  int count;
};

class StepJob : public Job {
 public:
  StepJob(StepContext& context, const StepCache& cache, const StepCall& call, int worker_slots);

  // Of one layer, in order; two more (begin, head) follow all layers.
  static std::vector<std::string> phase_names() {
    return {"begin", "project", "query_up", "absorb", "attend", "expand",
            "output", "middle", "route",  "choose", "up",     "down"};
  }

  int phases() const override { return int(network_.layers.size()) * kPhases + 2; }
  int items(int phase) override;
  void run(int phase, int item, int worker) override;
  bool stays_awake() const override { return true; }
  bool while_waiting(int worker) override {
    return ahead_[worker].prefetch_some() || later_[worker].prefetch_some();
  }
  void worker_done() override {
    if (kernels_.release_tiles) kernels_.release_tiles();
  }

 private:
  enum Phase {
    kBegin,    // routed and shared experts are added to the residual stream; norm (by token)
    kProject,  // projections to queries, keys and values, or to bottleneck and latent
    kQueryUp,  // latent attention with a bottleneck: from it to queries
    kAbsorb,   // latent attention: queries are rotated and multiplied by the keys' expansion (by head);
               // the KV cache is extended (by token)
    kAttend,   // parts of sequences, by group of heads: norms of heads, rotation; the last position's part
               // extends the KV cache; the part that ends last merges all
    kExpand,   // latent attention: mixed latents become values (by head)
    kOutput,   // output projection, added to the residual stream
    kMiddle,   // norm (by token)
    kRoute,    // router scores
    kChoose,   // experts (by token)
    kUp,       // experts, shared experts, dense layer: gate and up
    kDown,     // added to the residual stream, unless there are both routed and shared experts
    kPhases
  };
  static constexpr int kSerialTokens = 2;  // up to so many, a phase by token is not worth waking workers
  static constexpr int kRouterRows = 4;

  const StepLayer& layer(int phase) const { return network_.layers[phase / kPhases]; }
  int prepare(int phase);   // what one worker does before the phase; its number of items
  int by_token(int phase);  // does it at once for a few tokens; else the number of items
  void run_token(int phase, int token);

  // step_job.cpp
  void begin_layer(int number, int token);
  void end_layers(int token);
  void add_feed_forward(const StepLayer& layer, int token);
  void middle(const StepLayer& layer, int token);
  int begin_products(const StepProducts& products);
  void fill(const PackedMatrix& matrix, const std::uint16_t* values, int token, int first, int columns) {
    fill_columns(context_.multiplier, matrix.dtype, matrix.layout, buffers_.panel, values, call_.tokens,
                 token, first, columns);
  }
  StepProducts projections(const StepLayer& layer) const;
  StepProducts query_up(const StepLayer& layer) const;
  StepProducts output(const StepLayer& layer) const;
  StepProducts head() const;
  struct ItemPart {  // of attention: some positions of one token's sequence, for one group of heads
    int token, group, part, first, positions;
  };
  // step_ahead.cpp
  void read_ahead(int phase, int worker);
  void read_ahead(const StepProducts& products, int worker, ReadAhead& to);
  void read_ahead_of_router(const StepLayer& layer, int worker);
  void read_ahead_of_attention(int number, int worker);
  void read_ahead_cached(const StepCached& cached, const ItemPart& at, int width, int heads, int head, int worker);
  void read_ahead_rows(const void* base, const ItemPart& at, std::size_t row_bytes, std::size_t first_byte,
                       std::size_t bytes, int worker);
  // step_experts.cpp
  int begin_router(const StepLayer& layer);
  void run_router(const StepLayer& layer, int worker);
  void choose(const StepLayer& layer, int token);
  int begin_experts(const StepLayer& layer);
  void begin_routed(const StepLayer& layer);
  void begin_network(const StepLayer& layer);
  void fill_token(const StepLayer& layer);
  LayerCall layer_call() const;
  // step_attention.cpp
  void prepare_projections(const StepLayer& layer);
  const float* prepared_queries(int number, int token, int group, int worker);
  void cache_key(const StepLayer& layer, int number, int token, int head);
  void cache_latent(const StepLayer& layer, int number, int token);
  int begin_query_up(const StepLayer& layer);
  void prepare_latent_query(const StepAttention& of, int token, int head);
  void absorb(const StepLayer& layer, int head);
  void expand(const StepLayer& layer, int head);
  int begin_attention(const StepLayer& layer);
  int begin_output(const StepLayer& layer);
  // Of `attended`, by one item of the phase before the output projection, and whether that fills the panel.
  static int attended_columns(const StepAttention& of) {
    return of.latent() ? of.value_dim : of.heads_at_once() * of.head_dim;
  }
  static bool fills_attended(const StepLayer& layer) {
    const int columns = attended_columns(layer.attention);
    return columns == layer.attention.attended() || columns % fill_unit(layer.output.dtype) == 0;
  }
  ItemPart part_of(const StepAttention& of, int item) const;
  int attention_items(const StepAttention& of) const {
    return of.groups() * (buffers_.parts.back().before + buffers_.parts.back().count);
  }
  void run_attention(int number, int item, int worker);
  void merge(const StepLayer& layer, int token, int group);
  void turn_tokens();
  Turn turn_of(const StepAttention& of, int token) const;
  const std::int32_t* table_of(int token) const { return cache_.blocks_of(call_.slots[token]); }
  void keep(const StepCached& to, int token, const std::uint16_t* from, int width, int heads, int head) const;

  void run_products(int worker) { products_.run(worker, memory_of(worker), ahead_[worker].last()); }
  std::uint8_t* memory_of(int worker) { return buffers_.workers + worker * buffers_.worker_bytes; }
  std::size_t rows_before(const StepLayer& layer) const {  // of earlier routed layers
    return std::size_t(layer.routed_number) * call_.tokens;
  }
  void stamp(const StepLayer& layer, int which) {
    if (layer.routed()) call_.times[std::size_t(layer.routed_number) * 3 + which] = now_ns();
  }

  StepContext& context_;
  const StepNetwork& network_;
  const StepSizes& sizes_;
  const Kernels& kernels_;
  const StepKernels& step_;
  const StepCache& cache_;  // of the caller, who waits for the job
  const StepCall call_;
  const int worker_slots_;
  StepBuffers buffers_;
  ProductPhase products_;
  WorkStealingRanges ranges_;
  std::vector<std::atomic<int>> unfinished_parts_;                 // of each token and group of heads
  RepeatedLayer *experts_job_ = nullptr, *network_job_ = nullptr;  // of the current layer
  Panel token_panel_{};                                            // a single token's inputs of experts
  std::vector<std::int32_t> used_;                                 // experts, and their blocks
  std::vector<const std::uint8_t*> blocks_;
  std::vector<char> seen_;                // of each expert: whether it is used
  std::vector<std::size_t> first_angle_;  // of each rotation, in `cos` and `sin`
  std::vector<ReadAhead> ahead_, later_;  // of each worker: of the next phase, of the next layer
  struct alignas(64) Prepared {
    std::int64_t queries = -1;  // which the worker has in its memory: layer, token and group of heads
  };
  std::vector<Prepared> prepared_;  // of each worker
};

}  // namespace moesaic
