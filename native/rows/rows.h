// What the layers of a prompt compute between their matrix products, on the workers that multiply: norms,
// rotation of queries and keys, routing. Each row is computed by the functions that a decode step uses, by
// itself: its bits depend neither on the number of rows nor on the workers. And attention: see attention.h.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "layer/runner.h"
#include "layer/workspace.h"
#include "pool/pool.h"
#include "router/router.h"
#include "rows/attention.h"

namespace moesaic {

// out = RMSNorm(x), or of x + added, which is kept in `sum` (bf16 only).
struct NormCall {
  const void* x = nullptr;       // [rows, width], rows `stride` values apart
  const void* added = nullptr;   // [rows, width], contiguous, or null
  const void* weight = nullptr;  // [width]
  FloatType type = FloatType::bf16;
  std::size_t stride = 0;
  int rows = 0, width = 0;
  float eps = 0;
  void* sum = nullptr;  // [rows, width], where something is added
  void* out = nullptr;  // [rows, width]
};

// Heads of queries or keys, in place: bf16 [tokens, heads, width].
struct Heads {
  std::uint16_t* x = nullptr;
  int heads = 0, width = 0;
  const std::uint16_t* norm = nullptr;  // of each head [width], or of all [heads * width]; null: none
  bool whole = false;                   // the norm is over all heads of a token
  float* sums = nullptr;                // [tokens]: of the result, not finite where a value is not; or null
};

// Norms, then rotation of the first `rope_dim` values of every head.
struct HeadsCall {
  Heads queries, keys;
  int tokens = 0;
  float eps = 0;
  const float *cos = nullptr, *sin = nullptr;  // [tokens, rope_dim / 2]
  int rope_dim = 0;
  bool interleaved = false;
};

// More of a `RouterCall` with many tokens.
struct ManyTokens {
  const std::int64_t* counts = nullptr;  // [tokens]: experts that each uses, the others are -1; null: top_k
  const void* added = nullptr;           // to the residual stream, as in `NormCall`
  void* sum = nullptr;
};

class RowRunner {
 public:
  RowRunner(std::shared_ptr<Pool> pool, Isa isa);

  // Thread-safe. They throw InvalidCall for what would access memory out of bounds.
  void norm(const NormCall& call);
  void heads(const HeadsCall& call);
  void route(const RouterConfig& config, const RouterCall& call, const ManyTokens& more);
  void attend(const AttentionShape& shape, const std::vector<AttendedSequence>& sequences);
  void attend_batch(const AttentionShape& shape, const AttendedBatch& batch);
  std::size_t attention_bytes();  // that attention keeps for the next call

 private:
  template <class Rows>
  void run(int rows, const Rows& compute);

  std::shared_ptr<Pool> pool_;
  const Kernels* kernels_;
  std::mutex attention_mutex_;
  Workspace attention_workspace_;  // guarded by attention_mutex_
};

}  // namespace moesaic
