#include "rows/attention.h"

#include "rows/attention_job.h"
#include "rows/rows.h"

namespace moesaic {
namespace {

bool is_width(int width) { return width >= 32 && width <= kMaxHeadWidth && width % 32 == 0; }

void check_shape(const AttentionShape& shape) {
  require(is_width(shape.width) && is_width(shape.value_width),
          "heads of attention are multiples of 32 wide, up to 256");
  require(shape.kv_heads >= 1 && shape.heads >= shape.kv_heads && shape.heads % shape.kv_heads == 0,
          "as many query heads read every key head");
  require(shape.window >= 0, "a window has no negative length");
}

void check_heads(const CachedHeads& cached, int heads, int width) {
  require(cached.data, "keys or values are missing");
  require(cached.stride >= std::size_t(width) && (heads == 1 || cached.head_stride >= std::size_t(width)),
          "rows of keys or values overlap");
}

// Heads side by side, as new ones are.
bool is_writable(const CachedHeads& cached, int heads, int width) {
  return cached.stride >= std::size_t(heads) * width &&
         (heads == 1 || cached.head_stride == std::size_t(width));
}

void check_sequence(const AttentionShape& shape, const AttendedSequence& sequence) {
  constexpr int kMaxPositions = 1 << 30;
  require(sequence.tokens >= 1 && sequence.positions >= sequence.tokens,
          "new tokens are among a sequence's positions");
  require(sequence.first >= 0 && sequence.first < kMaxPositions && sequence.positions < kMaxPositions,
          "there are no such positions");
  require(!sequence.blocks || !sequence.first, "a sequence in blocks begins with its first position");
  require(sequence.queries && sequence.out, "queries or results are missing");
  check_heads(sequence.keys, shape.kv_heads, shape.width);
  check_heads(sequence.values, shape.kv_heads, shape.value_width);
  require(!sequence.new_keys == !sequence.new_values, "new keys come with new values");
  require(!sequence.new_keys || (is_writable(sequence.keys, shape.kv_heads, shape.width) &&
                                 is_writable(sequence.values, shape.kv_heads, shape.value_width)),
          "heads are side by side where new ones are written");
}

}  // namespace

void RowRunner::attend(const AttentionShape& shape, const std::vector<AttendedSequence>& sequences) {
  check_shape(shape);
  for (const AttendedSequence& sequence : sequences) check_sequence(shape, sequence);
  if (sequences.empty()) return;
  const std::lock_guard<std::mutex> lock(attention_mutex_);
  pool_->wait(pool_->submit(std::make_shared<AttentionJob>(*kernels_, shape, sequences, attention_workspace_,
                                                           pool_->worker_slots())),
              true);
}

std::size_t RowRunner::attention_bytes() {
  const std::lock_guard<std::mutex> lock(attention_mutex_);
  return attention_workspace_.capacity();
}

}  // namespace moesaic
