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
void StepJob::read_ahead_rows(const void* base, const ItemPart& at, std::size_t row_bytes,
                              std::size_t first_byte, std::size_t bytes, int worker) {
  const int end = at.first + at.positions;
  const std::int32_t* table = table_of(at.token);
  for (int position = at.first; position < end;) {
    const std::size_t row = cache_row(table, position);
    int rows = kCacheBlock - position % kCacheBlock;
    while (position + rows < end && cache_row(table, position + rows) == row + rows) rows += kCacheBlock;
    rows = std::min(rows, end - position);
    const auto* from = static_cast<const std::uint8_t*>(base) + row * row_bytes + first_byte;
    if (bytes == row_bytes && bytes < 64)  // several rows in a line
      ahead_[worker].add(from, bytes * rows);
    else
      ahead_[worker].add(from, bytes, row_bytes, rows);
    position += rows;
  }
}

void StepJob::read_ahead_cached(const StepCached& cached, const ItemPart& at, int width, int heads, int head,
                                int worker) {
  const std::size_t of_head = width / heads;
  if (!cached.codes)
    return read_ahead_rows(cached.values, at, std::size_t(width) * 2, head * of_head * 2, of_head * 2, worker);
  read_ahead_rows(cached.scales, at, std::size_t(heads) * 2, 0, std::size_t(heads) * 2, worker);
  read_ahead_rows(cached.codes, at, width, head * of_head, of_head, worker);
}

// Keys and values of the parts that the worker begins with, without those of the new token.
void StepJob::read_ahead_of_attention(int number, int worker) {
  constexpr int kItems = 3;  // at most: what follows is read while they are computed
  const StepAttention& of = network_.layers[number].attention;
  const StepLayerCache& kept = cache_.layers[number];
  const int items = attention_items(of);
  const int first = WorkStealingRanges::split(items, worker, worker_slots_);
  const int end = WorkStealingRanges::split(items, worker + 1, worker_slots_);
  const int heads = of.cached_heads();
  for (int item = first; item < std::min(end, first + kItems); ++item) {
    const ItemPart at = part_of(of, item);
    const int head = of.latent() ? 0 : at.group;
    read_ahead_cached(kept.first, at, of.keys(), heads, head, worker);
    read_ahead_cached(kept.second, at, of.second_keys(), heads, head, worker);
  }
}

}  // namespace moesaic
