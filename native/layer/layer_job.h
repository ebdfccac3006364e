// What both implementations of a layer have in common: grouping tokens by expert, buffers, and the steps.
// They differ in which worker does which step when: memory_bound.cpp (few tokens per expert), where reading
// the weights limits, and compute_bound.cpp (many), where multiplying does.
#pragma once

#include <vector>

#include "layer/buffer_sizes.h"
#include "layer/layer.h"
#include "pool/read_ahead.h"

namespace moesaic {

// Up to kChunkTokens tokens of one expert, computed together.
struct Chunk {
  const std::uint8_t* block;
  int expert;
  int tokens;
  int first_row;       // among all rows of the call
  int first_wave_row;  // among the rows of its wave
  Panel intermediate;
};

// A row is one (token, expert) pair. Rows are sorted by expert, experts with the most tokens first: short
// chunks come last.
struct RoutedRows {
  std::vector<Chunk> chunks;
  std::vector<std::int32_t> token;  // of every row
  std::vector<float> weight;

  void assign(const LayerCall& call);  // allocates nothing once it has had as many
  int count() const { return int(token.size()); }
  int max_chunk_tokens() const { return chunks.empty() ? 0 : chunks.front().tokens; }

 private:
  std::vector<int> index_of_, load_, order_, next_row_;
};

// The two strips that a worker reads next.
struct PrefetchTarget {
  const std::uint8_t* strips[2];
};

class LayerJob : public Job {
 public:
  void finished() override;
  void worker_done() override;
  // What a worker reads in the phase of down products, while it has an item of the one before.
  virtual void read_ahead(int /*worker*/, ReadAhead& /*to*/) const {}

 protected:
  LayerJob(const LayerConfig& config, int worker_slots);
  void begin_rows(const LayerCall& call);  // `rows_` are the call's

  // Buffers for so many rows at a time, and `extra` bytes, whose address is returned. Then a single token's
  // inputs, which all experts share, are gathered, unless they were given.
  std::uint8_t* allocate(Workspace& workspace, int rows, std::size_t extra);

  // Strips of gate and as many of up: both products and activation(gate) * up, which goes into the chunk's
  // intermediate panel or, where that is quantised, into an fp32 buffer for `quantise_intermediate`.
  void gate_and_up(int chunk_index, int strip, int strips, int worker, const PrefetchTarget& next);
  void quantise_intermediate(const Chunk& chunk, int token_tile);

  // c[strip][token][16] = intermediate activations times strips of down.
  void down_product(const Chunk& chunk, int strip, int strips, float* c, int worker,
                    const PrefetchTarget& next);
  // Adds a chunk's contribution, times the routing weights, to the sums of some strips.
  void add_to_sums(const Chunk& chunk, int strip, int strips, const float* c);
  void init_sums(int strip, int strips);
  void write_result(int strip, int strips);

  PrefetchTarget gate_and_up_strips(const Chunk& chunk, int strip) const;
  PrefetchTarget down_strips(const Chunk& chunk, int strip) const;
  float* product_sums(int worker) { return reinterpret_cast<float*>(worker_memory(worker)); }

  const LayerConfig config_;
  const int worker_slots_;
  LayerCall call_;
  RoutedRows rows_;

 private:
  Panel gathered_inputs(int chunk_index, int worker);
  void gather(const Chunk& chunk, const Panel& to);
  void fill(const Chunk& chunk, const Panel& panel, int token_tile, const void* const* rows, FloatType type,
            int inputs, std::size_t block_stride);
  void activate_into_panel(const Chunk& chunk, int strip, const float* gate, const float* up);
  void add_rounded(const float* from, int count, std::uint16_t* to);  // bf16
  float* intermediate_strip(const Chunk& chunk, int strip);
  float* sum_strip(int strip) { return sums_ + std::size_t(strip) * call_.tokens * kStripOutputs; }
  int width(int strip) const {
    return std::min(kStripOutputs, config_.layout.hidden - strip * kStripOutputs);
  }

  template <class T>
  T* out_at(int token, int strip) const {
    return static_cast<T*>(call_.out) + std::size_t(token) * config_.layout.hidden + strip * kStripOutputs;
  }

  // Laid out as `WorkerBuffers` says.
  std::uint8_t* worker_memory(int worker) { return workers_ + worker * worker_bytes_.total; }
  std::uint8_t* scratch_of(int worker) { return worker_memory(worker + 1) - kScratchBytes; }
  Panel input_panel(int worker);

  const RowBytes row_bytes_;
  WorkerBuffers worker_bytes_;
  bool shared_panel_ = false;        // one token: all experts have the same inputs
  std::vector<int> gathered_chunk_;  // index of the chunk whose inputs each worker has gathered
  std::uint8_t* workers_ = nullptr;
  float *intermediate_f32_ = nullptr, *sums_ = nullptr;
};

// A memory-bound layer of two phases that computes one call after the other.
class RepeatedLayer : public LayerJob {
 public:
  // While no worker runs. The workspace is this layer's until the call is computed.
  virtual void begin(const LayerCall& call, Workspace& workspace) = 0;
  // The same with the call's rows, for which others are given back.
  virtual void begin(const LayerCall& call, RoutedRows& rows, Workspace& workspace) = 0;

 protected:
  using LayerJob::LayerJob;
};
// `alone`: it is a pool's job, not a part of one that reads ahead itself.
std::unique_ptr<RepeatedLayer> repeated_layer(const LayerConfig& config, int worker_slots, bool alone);

// A memory-bound layer with a third phase, in which all workers add up the rows.
std::shared_ptr<Job> summing_layer(const LayerConfig& config, const LayerCall& call, RoutedRows rows,
                                   Workspace& workspace, int worker_slots);
std::shared_ptr<Job> compute_bound_layer(const LayerConfig& config, const LayerCall& call, RoutedRows rows,
                                         Workspace& workspace, int worker_slots);

}  // namespace moesaic
