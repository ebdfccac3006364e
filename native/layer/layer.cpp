#include "layer/layer.h"

#include <algorithm>

#include "layer/layer_job.h"

namespace moesaic {

std::size_t workspace_bytes(const LayerKind& kind, int tokens, int top_k, int places) {
  const Buffers buffers(kind.layout);
  const auto in_rows = [&](int rows, int chunk) {
    return rows * buffers.per_row() + places * Own(kind.layout, std::min(rows, chunk)).all;
  };
  const int all = tokens * top_k, few = std::min(all, kFewRows);
  const std::size_t sums = std::size_t(tokens) * kind.layout.down.strips * kStripOutputs * 4;
  const std::size_t bytes =
      sums + std::max(in_rows(rows_at_once(all), kChunkTokens),
                      in_rows(few, kManyTokens) + parts_bytes(kind.layout, few));
  return bytes + bytes / 4 + 32 * kAlignment;
}

std::shared_ptr<Work> layer_work(const LayerKind& kind, const LayerCall& call, Workspace& workspace,
                                 int places) {
  Rows rows(call);
  const bool few = rows.count() > 0 && rows.count() <= kFewRows && rows.most_tokens() <= kManyTokens;
  return (few ? few_tokens : many_tokens)(kind, call, std::move(rows), workspace, places);
}

}  // namespace moesaic
