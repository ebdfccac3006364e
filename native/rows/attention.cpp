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
  require(!cached.codes != !cached.data, "keys or values are missing, or in two precisions");
  require(!cached.codes == !cached.scales, "codes of keys or values come with scales");
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
  require(!sequence.keys.codes == !sequence.values.codes, "keys and values have the same precision");
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

void RowRunner::attend_batch(const AttentionShape& shape, const AttendedBatch& batch) {
  check_shape(shape);
  require(batch.count >= 0 && (batch.sequences || !batch.count), "a batch has sequences");
  require(batch.queries && batch.new_keys && batch.new_values && batch.out, "queries or results are missing");
  std::vector<AttendedSequence> sequences(batch.count);
  for (int i = 0; i < batch.count; ++i) {
    const std::int64_t* from = batch.sequences + 4 * i;
    const std::size_t row = from[0];
    AttendedSequence& to = sequences[i];
    to.queries = batch.queries + row * shape.heads * shape.width;
    to.new_keys = batch.new_keys + row * shape.kv_heads * shape.width;
    to.new_values = batch.new_values + row * shape.kv_heads * shape.value_width;
    to.out = batch.out + row * shape.heads * shape.value_width;
    to.keys = batch.keys, to.values = batch.values;
    to.tokens = int(from[1]), to.positions = int(from[2]);
    to.blocks = reinterpret_cast<const std::int32_t*>(from[3]);
    require(from[0] >= 0 && to.blocks, "a sequence of a batch has blocks");
  }
  attend(shape, sequences);
}

std::size_t RowRunner::attention_bytes() {
  const std::lock_guard<std::mutex> lock(attention_mutex_);
  return attention_workspace_.capacity();
}

}  // namespace moesaic
