// A runner computes layers of one shape and precision on one pool, one at a time, and owns a workspace.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <stdexcept>

#include "layer/expert_read_ahead.h"
#include "layer/layer.h"
#include "layout/pack.h"

namespace moesaic {

enum class Isa : int {
  best = 0,
  amx = 1,
  avx512 = 2,
  avx2 = 3,
  portable = 4,
  avx512_vnni = 5,
  avx512_base = 6,
  avx2_vnni = 7
};
constexpr int kIsaCodes = 8;

struct NamedIsa {
  const char* name;
  Isa isa;
};
constexpr NamedIsa kIsas[] = {  // the best first, as a rule
    {"amx", Isa::amx},
    {"avx512", Isa::avx512},
    {"avx512-vnni", Isa::avx512_vnni},
    {"avx512-base", Isa::avx512_base},
    {"avx2-vnni", Isa::avx2_vnni},
    {"avx2", Isa::avx2},
    {"portable", Isa::portable},
};

struct InvalidCall : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

inline void require(bool condition, const char* message) {
  if (!condition) throw InvalidCall(message);
}

const Kernels* kernels_for(Isa isa);  // null where this CPU does not support them

// Those that this CPU supports, the best first: of avx512 and avx512-vnni the one that multiplies bf16
// faster.
const std::vector<NamedIsa>& supported_isas();

ExpertLayout checked_layout(Dtype dtype, int hidden, int intermediate);  // throws InvalidCall

class Runner {
 public:
  Runner(std::shared_ptr<Pool> pool, Dtype dtype, int hidden, int intermediate, Activation activation,
         Isa isa, int tiles_from);
  ~Runner() { wait(false); }

  const LayerConfig& config() const { return config_; }
  Pool& pool() { return *pool_; }
  std::size_t workspace_bytes(int tokens, int top_k) const {
    return moesaic::workspace_bytes(config_, tokens, top_k, pool_->worker_slots());
  }

  void pack(const MatrixView (&matrices)[3], std::uint8_t* block);
  // Thread-safe: there is one workspace, so a layer is submitted when the one before is done. A wait
  // returns when the last submitted layer is done, and so all before it.
  void submit(const LayerCall& call);
  // Blocks of experts that the next layer may have, the likeliest first: until one is submitted, workers that have
  // nothing to do bring them into their caches.
  void read_ahead(const std::uint8_t* const* blocks, int count);
  // The same by the thread that submits layers and helps with them: a few lines; false: nothing is left.
  bool read_some() { return ahead_ && ahead_->read_some(0); }
  bool done() const;
  void wait(bool help);

 private:
  void stop_reading_ahead();

  std::shared_ptr<Pool> pool_;
  LayerConfig config_;
  std::mutex submit_mutex_;                // held until the job that uses the workspace is in the pool
  Workspace workspace_;                    // guarded by submit_mutex_
  LayerJobs jobs_;                         // likewise
  std::shared_ptr<ExpertReadAhead> ahead_;  // written under submit_mutex_
  std::atomic<std::uint64_t> ticket_{0};   // of the last layer; 0: none
};

}  // namespace moesaic
