// A runner computes layers of one kind on one pool, one at a time, and keeps its workspace.
#pragma once

#include <memory>
#include <mutex>
#include <stdexcept>

#include "layer/layer.h"
#include "layout/pack.h"

namespace moesaic {

enum class Isa : int { best = 0, amx = 1, avx512 = 2, avx2 = 3 };

struct BadCall : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

const Kernels* kernels_for(Isa isa);  // null where this CPU has not got them

class Runner {
 public:
  Runner(std::shared_ptr<Pool> pool, Dtype dtype, int hidden, int intermediate, Activation activation,
         Isa isa, int tiles_from);
  ~Runner() { wait(false); }

  const LayerKind& kind() const { return kind_; }
  Pool& pool() { return *pool_; }
  std::size_t workspace_bytes(int tokens, int top_k) const {
    return moesaic::workspace_bytes(kind_, tokens, top_k, pool_->places());
  }

  void pack(const Matrix (&matrices)[3], std::uint8_t* block);
  void submit(const LayerCall& call);
  bool done() const { return ticket_ == 0 || pool_->done(ticket_); }
  void wait(bool help);

 private:
  std::shared_ptr<Pool> pool_;
  LayerKind kind_;
  Workspace workspace_;
  std::uint64_t ticket_ = 0;
};

}  // namespace moesaic
