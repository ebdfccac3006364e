// What workers of a decode step prefetch while they wait: what they read in the next phase, as far as it is
// known, then the next layer's first weights, as the router's choice is not known while it is made. Small
// vectors that one worker reads alone between phases, all prefetch: any may be that one.
#include "step/step_job.h"

namespace moesaic {

// When a worker begins with a phase.
void StepJob::read_ahead(int phase, int worker) {
  const int number = phase / kPhases;
  if (number == int(network_.layers.size())) return;
  const StepLayer& layer = network_.layers[number];
  const bool last = number + 1 == int(network_.layers.size());
  ReadAhead& ahead = ahead_[worker];
  switch (phase % kPhases) {
    case kProject:
      later_[worker].restart();
      ahead.restart();
      if (layer.query_down.data) return read_ahead(query_up(layer), worker, ahead);
      read_ahead_of_attention(number, worker);
      return read_ahead(output(layer), worker, ahead);
    case kQueryUp:
      ahead.restart();
      return read_ahead(output(layer), worker, ahead);
    case kOutput:
      prefetch_all(layer.feed_forward_norm, std::size_t(sizes_.hidden) * 2);
      read_ahead_of_router(layer, worker);
      later_[worker].restart();
      return read_ahead(last ? head() : projections(network_.layers[number + 1]), worker, later_[worker]);
    case kUp:
      ahead.restart();
      for (const RepeatedLayer* job : {experts_job_, network_job_})
        if (job) job->read_ahead(worker, ahead);
      return;
    case kDown:
      ahead.restart();
      prefetch_all(last ? network_.norm : network_.layers[number + 1].attention_norm,
                   std::size_t(sizes_.hidden) * 2);
      return;
  }
}

void StepJob::read_ahead(const StepProducts& of, int worker, ReadAhead& to) {
  ProductPhase::read_ahead(of.products, of.count, worker, worker_slots_, to);
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

// Of a part, so many bytes from a column on of every row; blocks that lie side by side at once.
void StepJob::read_ahead_cached(std::uint16_t* base, const ItemPart& at, int width, int column,
                                std::size_t bytes, int worker) {
  const int end = at.first + at.positions;
  for (int position = at.first; position < end;) {
    int rows = kCacheBlock - position % kCacheBlock;
    while (position + rows < end && cached(base, width, at.token, position + rows) ==
                                        cached(base, width, at.token, position) + std::size_t(rows) * width)
      rows += kCacheBlock;
    rows = std::min(rows, end - position);
    ahead_[worker].add(cached(base, width, at.token, position) + column, bytes, std::size_t(width) * 2, rows);
    position += rows;
  }
}

// Keys and values of the parts that the worker begins with, without those of the new token.
void StepJob::read_ahead_of_attention(int number, int worker) {
  constexpr int kItems = 3;  // at most: what follows is read while they are computed
  const StepAttention& of = network_.layers[number].attention;
  const StepLayerCache& kept = cache_.layers[number];
  const int items = attention_items(of);
  const int first = WorkStealingRanges::split(items, worker, worker_slots_);
  const int end = WorkStealingRanges::split(items, worker + 1, worker_slots_);
  const int width = of.keys(), second_width = of.second_keys();
  for (int item = first; item < std::min(end, first + kItems); ++item) {
    const ItemPart at = part_of(of, item);
    const int column = of.latent() ? 0 : at.group * of.head_dim;
    const std::size_t bytes = 2 * std::size_t(of.latent() ? width : of.head_dim);
    const std::size_t second_bytes = 2 * std::size_t(of.latent() ? second_width : of.head_dim);
    read_ahead_cached(kept.first, at, width, column, bytes, worker);
    read_ahead_cached(kept.second, at, second_width, column, second_bytes, worker);
  }
}

}  // namespace moesaic
