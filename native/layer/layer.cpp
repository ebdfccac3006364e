#include "layer/layer.h"

#include <algorithm>

#include "layer/layer_job.h"

namespace moesaic {

std::size_t workspace_bytes(const LayerConfig& config, int tokens, int top_k, int worker_slots) {
  const RowBytes row(config.layout);
  const auto bytes_of = [&](int rows, int chunk) {
    return rows * row.wave_total() + worker_slots * WorkerBuffers(config.layout, std::min(rows, chunk)).total;
  };
  const int all = tokens * top_k, memory_bound = std::min(all, kMemoryBoundRows);
  const std::size_t sums = std::size_t(tokens) * config.layout.down.strips * kStripOutputs * 4;
  const std::size_t bytes = sums + std::max(bytes_of(max_wave_rows(all), kChunkTokens),
                                            bytes_of(memory_bound, kMemoryBoundTokens) +
                                                partial_sums_bytes(config.layout, memory_bound));
  return bytes + bytes / 4 + 32 * kAlignment;
}

std::shared_ptr<Job> layer_job(const LayerConfig& config, const LayerCall& call, Workspace& workspace,
                               int worker_slots) {
  RoutedRows rows(call);
  const bool memory_bound =
      rows.count() > 0 && rows.count() <= kMemoryBoundRows && rows.max_chunk_tokens() <= kMemoryBoundTokens;
  return (memory_bound ? memory_bound_layer : compute_bound_layer)(config, call, std::move(rows), workspace,
                                                                   worker_slots);
}

}  // namespace moesaic
