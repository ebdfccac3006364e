// A runner computes layers of one shape and precision on one pool, one at a time, and owns a workspace.
#pragma once

#include <memory>
#include <mutex>
#include <stdexcept>

#include "layer/layer.h"
#include "layout/pack.h"

namespace moesaic {

enum class Isa : int { best = 0, amx = 1, avx512 = 2, avx2 = 3 };

struct InvalidCall : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

const Kernels* kernels_for(Isa isa);  // null where this CPU does not support them

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
  void submit(const LayerCall& call);
  bool done() const { return ticket_ == 0 || pool_->done(ticket_); }
  void wait(bool help);

 private:
  std::shared_ptr<Pool> pool_;
  LayerConfig config_;
  Workspace workspace_;
  std::uint64_t ticket_ = 0;
};

}  // namespace moesaic
