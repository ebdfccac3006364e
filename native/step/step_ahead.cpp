// What workers of a decode step prefetch while they wait: the weights that they read in the next phase whose
// weights are known. Small vectors that one worker reads alone between phases, all prefetch: any may be that one.
#include "step/step_job.h"

namespace moesaic {

// When a worker begins with a phase.
void StepJob::read_ahead(int phase, int worker) {
  const int number = phase / kPhases;
  if (number == int(network_.layers.size())) return;
  const StepLayer& layer = network_.layers[number];
  const bool last = number + 1 == int(network_.layers.size());
  switch (phase % kPhases) {
    case kProject: return read_ahead(layer.query_down.data ? query_up(layer) : output(layer), worker);
    case kQueryUp: return read_ahead(output(layer), worker);  // attention reads little before
    case kOutput:
      prefetch_all(layer.feed_forward_norm, std::size_t(sizes_.hidden) * 2);
      return read_ahead_of_router(layer, worker);
    case kUp:
      ahead_[worker].restart();
      for (const RepeatedLayer* job : {experts_job_, network_job_})
        if (job) job->read_ahead(worker, ahead_[worker]);
      return;
    case kDown:
      prefetch_all(last ? network_.norm : network_.layers[number + 1].attention_norm,
                   std::size_t(sizes_.hidden) * 2);
      return read_ahead(after_layer(number), worker);
  }
}

void StepJob::read_ahead(const StepProducts& of, int worker) {
  ahead_[worker].restart();
  ProductPhase::read_ahead(of.products, of.count, worker, worker_slots_, ahead_[worker]);
}

void StepJob::read_ahead_of_router(const StepLayer& layer, int worker) {
  ahead_[worker].restart();
  if (!layer.routed()) return;
  const int items = divide_up(network_.router.experts, kRouterRows);
  const int first = WorkStealingRanges::split(items, worker, worker_slots_) * kRouterRows;
  const int end = WorkStealingRanges::split(items, worker + 1, worker_slots_) * kRouterRows;
  ahead_[worker].add(layer.gate + std::size_t(first) * sizes_.hidden,
                     std::size_t(std::min(end, network_.router.experts) - first) * sizes_.hidden * 2);
}

}  // namespace moesaic
