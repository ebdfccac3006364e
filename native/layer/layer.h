// One layer's experts in one call: tokens are grouped by expert, every expert computes its tokens, and the
// results are weighted and added.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "layer/workspace.h"
#include "pool/pool.h"
#include "products/kernels.h"

namespace moesaic {

// The arguments of a layer. Memory must stay valid until the job is done, except `experts`, `blocks`, `ids`
// and `weights`, which are read by submit.
struct LayerCall {
  const void* hidden = nullptr;  // [tokens, hidden], rows `hidden_stride` values apart
  FloatType hidden_type = FloatType::f32;
  std::size_t hidden_stride = 0;
  int tokens = 0, top_k = 0, experts_total = 0;
  const std::int64_t* ids = nullptr;  // [tokens, top_k]; experts not listed below are skipped
  const float* weights = nullptr;     // [tokens, top_k]
  int count = 0;                      // experts to compute: their numbers and blocks
  const std::int32_t* experts = nullptr;
  const std::uint8_t* const* blocks = nullptr;
  void* out = nullptr;  // [tokens, hidden], contiguous; overwritten
  FloatType out_type = FloatType::f32;
  bool add = false;    // to what `out` holds (fp32: before rounding; bf16: after it, in decode steps)
  // May be null: where the worker that ends the layer notes the time, then raises a flag.
  std::uint32_t* done_flag = nullptr;
  std::uint32_t done_value = 0;
  std::int64_t* done_ns = nullptr;
  const Panel* inputs = nullptr;  // of a single token, where they are a panel already; else null
  bool divides = false;  // few rows: a worker has the same part of every expert, as it was read ahead
  bool strict = true;  // reject routing weights that are not finite, rather than compute with them
};

// The shape, precision and instruction set of a layer's experts. Immutable, shared by threads.
struct LayerConfig {
  ExpertLayout layout;
  Activation activation;
  const Kernels* kernels;
  int tiles_from;  // tokens of an expert from which on there are the products for many (`Kernels::tiles`); 0: never

  bool in_tiles(int tokens) const {
    return tiles_from > 0 && tokens >= tiles_from && kernels->tiles[int(layout.dtype)];
  }
  Product product(int tokens) const {
    return (in_tiles(tokens) ? kernels->tiles : kernels->vector)[int(layout.dtype)];
  }
  // Whether the intermediate activations are bf16, rather than quantised.
  bool bf16_intermediate(int tokens) const { return fill(tokens) == kernels->fill_bf16; }
  FillPanel fill(int tokens) const { return kernels->fill(layout.dtype, in_tiles(tokens)); }
};

constexpr int kMaxRows = 1 << 30;  // (token, expert) pairs of a call

// An error message; empty if the call is valid.
std::string validate(const LayerConfig& config, const LayerCall& call);

// Upper bound for a call with so many tokens.
std::size_t workspace_bytes(const LayerConfig& config, int tokens, int top_k, int worker_slots);

// Which implementation computes layers, for tests and benchmarks, which compare them.
enum class LayerKind : int { automatic, memory_bound, compute_bound };
void override_layer_kind(LayerKind kind);

class RepeatedLayer;
struct RoutedRows;

// The jobs of calls that share a workspace: each is made when the one before is done. Those of few rows, as
// in decoding, are one object, which allocates nothing once it has had as many.
class LayerJobs {
 public:
  LayerJobs(const LayerConfig& config, int worker_slots);
  ~LayerJobs();

  std::shared_ptr<Job> make(const LayerCall& call, Workspace& workspace);

 private:
  const LayerConfig config_;
  const int worker_slots_;
  std::unique_ptr<RoutedRows> rows_;
  std::shared_ptr<RepeatedLayer> few_rows_;
};

}  // namespace moesaic
