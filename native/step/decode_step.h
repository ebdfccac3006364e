// Decode steps of one network on one pool: checks what it is given, and runs one step at a time.
#pragma once

#include <mutex>

#include "layer/runner.h"
#include "step/step_job.h"

namespace moesaic {

class DecodeStep {
 public:
  // Throws InvalidCall where the description contradicts itself. What it points to must outlive this.
  DecodeStep(std::shared_ptr<Pool> pool, Isa isa, const StepNetwork& network);

  // One step; returns when it is done. Thread-safe: steps take turns. Throws InvalidCall, before anything is
  // computed, for what would access memory out of bounds.
  void run(const StepCache& cache, const StepCall& call);

  const char* isa() const { return context_.multiplier.kernels->name; }

 private:
  std::mutex mutex_;
  std::shared_ptr<Pool> pool_;
  StepContext context_;
};

}  // namespace moesaic
