#include "layer/layer.h"

#include <algorithm>
#include <atomic>

#include "layer/layer_job.h"

namespace moesaic {
namespace {

std::atomic<LayerKind> kind_override{LayerKind::automatic};

// Memory bound: up to 64 tokens per expert on average, as long as every row's partial sums have room.
bool is_memory_bound(const LayerConfig& config, const RoutedRows& rows) {
  if (!rows.count() || rows.count() > partial_sum_rows(config.layout)) return false;
  const LayerKind kind = kind_override.load(std::memory_order_relaxed);
  if (kind != LayerKind::automatic) return kind == LayerKind::memory_bound;
  return rows.count() <= kMeanTokens * int(rows.chunks.size());
}

}  // namespace

void override_layer_kind(LayerKind kind) { kind_override.store(kind, std::memory_order_relaxed); }

std::size_t workspace_bytes(const LayerConfig& config, int tokens, int top_k, int worker_slots) {
  const RowBytes row(config.layout);
  const auto bytes_of = [&](int rows, int chunk) {
    return rows * row.wave_total() + worker_slots * WorkerBuffers(config.layout, std::min(rows, chunk)).total;
  };
  const int all = tokens * top_k, memory_bound = std::min(all, partial_sum_rows(config.layout));
  const std::size_t sums = std::size_t(tokens) * config.layout.down.strips * kStripOutputs * 4;
  const std::size_t bytes = sums + std::max(bytes_of(max_wave_rows(all), kChunkTokens),
                                            bytes_of(memory_bound, kChunkTokens) +
                                                partial_sums_bytes(config.layout, memory_bound));
  return bytes + bytes / 4 + 32 * kAlignment;
}

LayerJobs::LayerJobs(const LayerConfig& config, int worker_slots)
    : config_(config),
      worker_slots_(worker_slots),
      rows_(std::make_unique<RoutedRows>()),
      few_rows_(repeated_layer(config, worker_slots, true)) {}

LayerJobs::~LayerJobs() = default;

std::shared_ptr<Job> LayerJobs::make(const LayerCall& call, Workspace& workspace) {
  rows_->assign(call);
  if (!is_memory_bound(config_, *rows_))
    return compute_bound_layer(config_, call, std::move(*rows_), workspace, worker_slots_);
  if (rows_->count() > kSumPhaseRows || rows_->max_chunk_tokens() > kMemoryBoundTokens)
    return summing_layer(config_, call, std::move(*rows_), workspace, worker_slots_);
  few_rows_->begin(call, *rows_, workspace);
  return few_rows_;
}

}  // namespace moesaic
