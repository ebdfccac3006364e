#include "conductor/wants.h"

#include <algorithm>

#include "conductor/conductor.h"

namespace moesaic {

// Takes note of what the layer's routers want, and counts how much of what is used was wanted before.
void Conductor::note_wants(int layer) {
  const Mailbox& box = config_.mailbox;
  const int top_k = config_.top_k;
  for (int token = 0; token < tokens_; ++token) {
    const std::size_t at = (std::size_t(layer) * tokens_ + token) * top_k;
    if (wants_.seen_ids) {
      std::copy_n(box.ranked + std::size_t(token) * config_.ranks, top_k, wants_.seen_ids + at);
      std::copy_n(box.scores + std::size_t(token) * config_.ranks, top_k, wants_.seen_scores + at);
    }
    if (!wants_.ids || wants_.ids[at] < 0) continue;
    const std::int64_t *known = wants_.ids + at, *used = box.ids + std::size_t(token) * top_k;
    for (int k = 0; k < top_k; ++k) {
      if (used[k] < 0) continue;
      ++wants_.judged;
      wants_.right += std::find(known, known + top_k, used[k]) != known + top_k;
    }
  }
}

}  // namespace moesaic
