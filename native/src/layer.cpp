#include "layer.h"

#include <algorithm>

#include "layer_base.h"

namespace moesaic {

std::size_t workspace_bytes(const LayerKind& kind, int tokens, int top_k, int places) {
  const Buffers buffers(kind.layout);
  const std::size_t rows = rows_at_once(tokens * top_k), few = std::min<std::size_t>(rows, kFewRows);
  const std::size_t in_rows = std::max(rows * buffers.per_row(),
                                       few * buffers.per_row() + parts_bytes(kind.layout, int(few)));
  const std::size_t sums = std::size_t(tokens) * kind.layout.down.strips * kStripOutputs * 4;
  const std::size_t bytes = in_rows + sums + places * Own(kind.layout, tokens * top_k).all;
  return bytes + bytes / 4 + 32 * kAlignment;
}

std::shared_ptr<Work> layer_work(const LayerKind& kind, const LayerCall& call, Workspace& workspace,
                                 int places) {
  Rows rows(call);
  const bool few = rows.count() > 0 && rows.count() <= kFewRows && rows.most_tokens() <= kManyTokens;
  return (few ? few_tokens : many_tokens)(kind, call, std::move(rows), workspace, places);
}

}  // namespace moesaic
