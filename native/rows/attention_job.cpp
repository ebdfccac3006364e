#include "rows/attention_job.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace moesaic {
namespace {

constexpr int kTilesAtOnce = 4;  // of rows; their scores and results stay in the L1 cache
constexpr int kRowsAtOnce = kTilesAtOnce * kTileTokens;
constexpr int kTilesOfItem = 16;    // of rows, about: packing a block is a small part of an item then
constexpr int kItemsPerWorker = 3;  // or as many as there can be
constexpr int kTokensOfCopy = 32;
constexpr int kMaxValueStrips = kMaxHeadWidth / kStripOutputs;
constexpr float kLowest = -3.4028235e38f;

}  // namespace

AttentionJob::AttentionJob(const Kernels& kernels, const AttentionShape& shape,
                           const std::vector<AttendedSequence>& sequences, Workspace& workspace,
                           int worker_slots)
    : kernels_(kernels),
      shape_(shape),
      sequences_(sequences),
      keys_(Dtype::bf16, kKeyBlock, shape.width),
      values_(Dtype::bf16, shape.value_width, kKeyBlock) {
  for (const AttendedSequence& sequence : sequences_) {
    codes_ |= sequence.keys.codes != nullptr;
    for (int token = 0; sequence.new_keys && token < sequence.tokens; token += kTokensOfCopy)
      copies_.push_back({&sequence, token, std::min(kTokensOfCopy, sequence.tokens - token)});
  }
  for (int tiles = std::max(kTilesOfItem / heads_at_once(), 1);; tiles /= 2) {
    items_.clear();
    for (const AttendedSequence& sequence : sequences_) cut(sequence, tiles * kTileTokens);
    if (tiles == 1 || int(items_.size()) >= kItemsPerWorker * worker_slots) break;
  }
  std::stable_sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) { return a.work > b.work; });
  for (const Item& item : items_) most_tiles_ = std::max(most_tiles_, item.tiles());
  workspace.reset(worker_bytes() * worker_slots + kAlignment);
  workers_ = workspace.take(worker_bytes() * worker_slots);
}

// Query heads of an item: all that read one key head, or equal parts of them.
int AttentionJob::heads_at_once() const {
  const int group = shape_.heads / shape_.kv_heads;
  return divide_up(group, divide_up(group, kTilesOfItem));
}

void AttentionJob::cut(const AttendedSequence& sequence, int tokens) {
  const int group = shape_.heads / shape_.kv_heads;
  for (int kv_head = 0; kv_head < shape_.kv_heads; ++kv_head)
    for (int within = 0; within < group; within += heads_at_once())
      for (int token = 0; token < sequence.tokens; token += tokens) {
        Item item{&sequence, kv_head * group + within, std::min(heads_at_once(), group - within), token,
                  std::min(tokens, sequence.tokens - token), 0};
        const int last = sight_of(item, item.tokens - 1).position, first = sight_of(item, 0).first;
        item.work = std::int64_t(last / kKeyBlock - first / kKeyBlock + 1) * item.tiles();
        items_.push_back(item);
      }
}

void AttentionJob::copy(const Copy& part) const {
  copy_rows(part.sequence->keys, part, part.sequence->new_keys, shape_.width);
  copy_rows(part.sequence->values, part, part.sequence->new_values, shape_.value_width);
}

void AttentionJob::copy_rows(const CachedHeads& to, const Copy& part, const std::uint16_t* from, int width) const {
  const AttendedSequence& sequence = *part.sequence;
  const std::size_t values = std::size_t(shape_.kv_heads) * width;
  const int first = sequence.first + sequence.positions - sequence.tokens;
  for (int token = part.token; token < part.token + part.tokens; ++token) {
    const std::size_t row = cached_row(sequence, first + token);
    const std::uint16_t* heads = from + token * values;
    if (!to.codes) {
      std::memcpy(to.data + row * to.stride, heads, values * 2);
      continue;
    }
    for (int head = 0; head < shape_.kv_heads; ++head)
      to.scales[row * shape_.kv_heads + head] = kernels_.attention->round_codes(
          heads + head * width, width, to.codes + row * to.stride + head * to.head_stride);
  }
}

std::size_t AttentionJob::worker_bytes() const {
  const std::size_t rows = std::size_t(most_tiles_) * kTileTokens;
  const std::size_t of_rows = rows * (shape_.width * 2 + shape_.value_width * 4 + 8);
  const std::size_t at_once = kRowsAtOnce * (std::size_t(kKeyBlock) * 6 + shape_.value_width * 4 + 12);
  const std::size_t block = keys_.strips * keys_.strip_bytes + values_.strips * values_.strip_bytes;
  const std::size_t widened = codes_ ? widened_bytes() + sizeof(BlockScales) : 0;
  return of_rows + at_once + block + widened + kScratchBytes;
}

AttentionJob::Memory AttentionJob::memory_of(int worker) const {
  const std::size_t rows = std::size_t(most_tiles_) * kTileTokens;
  std::uint8_t* at = workers_ + worker * worker_bytes();
  const auto take = [&at]<class T>(T*& part, std::size_t bytes) {
    part = reinterpret_cast<T*>(at);
    at += bytes;  // a multiple of 64: rows are of 16
  };
  Memory memory;
  take(memory.queries, rows * shape_.width * 2);
  take(memory.keys, keys_.strips * keys_.strip_bytes);
  take(memory.values, values_.strips * values_.strip_bytes);
  take(memory.widened, codes_ ? widened_bytes() : 0);
  take(memory.scales, codes_ ? sizeof(BlockScales) : 0);
  take(memory.scores, kRowsAtOnce * kKeyBlock * 4);
  take(memory.added, std::size_t(kRowsAtOnce) * shape_.value_width * 4);
  take(memory.mixed, rows * shape_.value_width * 4);
  take(memory.shares, kRowsAtOnce * kKeyBlock * 2);
  take(memory.visible, kRowsAtOnce * 8);
  take(memory.shrink, kRowsAtOnce * 4);
  take(memory.largest, rows * 4);
  take(memory.sums, rows * 4);
  memory.scratch = at;
  return memory;
}

AttentionJob::Sight AttentionJob::sight_of(const Item& item, int token) const {
  const AttendedSequence& sequence = *item.sequence;
  const int new_token = std::min(item.token + token, sequence.tokens - 1);
  const int position = sequence.first + sequence.positions - sequence.tokens + new_token;
  const int first = shape_.window ? std::max(sequence.first, position - shape_.window + 1) : sequence.first;
  return {first, position};
}

AttentionJob::Row AttentionJob::row_of(const Item& item, int tile, int i) {
  if (!item.by_head()) {
    const int token = tile / item.heads * kTileTokens + i;
    return {token, item.head + tile % item.heads, token < item.tokens};
  }
  const int tiles = divide_up(item.heads, kTileTokens), within = tile % tiles * kTileTokens + i;
  return {tile / tiles, item.head + within, within < item.heads};
}

// Queries as a panel, and what the softmax begins with.
void AttentionJob::fill(const Item& item, const Memory& memory) const {
  const std::size_t stride = std::size_t(shape_.heads) * shape_.width;
  for (int tile = 0; tile < item.tiles(); ++tile) {
    std::uint8_t* to = memory.queries + std::size_t(tile) * keys_.tiles * kTileBytes;
    for (int i = 0; i < kTileTokens; ++i) {
      const Row row = row_of(item, tile, i);
      const std::uint16_t* from = item.sequence->queries + (item.token + row.token) * stride +
                                  std::size_t(row.head) * shape_.width;
      for (int k = 0; k < keys_.tiles; ++k)
        if (row.there)
          std::memcpy(to + k * kTileBytes + i * kRowBytes, from + k * 32, kRowBytes);
        else
          std::memset(to + k * kTileBytes + i * kRowBytes, 0, kRowBytes);
      const float sink = shape_.sinks && row.there ? shape_.sinks[row.head] : kLowest;
      const float poison = sink * 0.0f;  // NaN where it is not finite: -inf would be no sink at all
      memory.largest[tile * kTileTokens + i] = poison == 0.0f ? sink : kLowest;
      memory.sums[tile * kTileTokens + i] = (shape_.sinks ? 1.0f : 0.0f) + poison;
    }
  }
  std::memset(memory.mixed, 0, std::size_t(item.tiles()) * kTileTokens * shape_.value_width * 4);
}

// Where a position's row is, in rows from where the cached heads begin.
std::size_t AttentionJob::cached_row(const AttendedSequence& sequence, int position) const {
  if (!sequence.blocks) return std::size_t(position - sequence.first);
  return std::size_t(sequence.blocks[position / kKeyBlock]) * kKeyBlock + position % kKeyBlock;
}

// A head's rows of one block. Codes are widened in the worker's memory; `scales` then gets theirs.
BlockRows AttentionJob::rows_of(const CachedHeads& cached, const Item& item, int block, int width,
                                const Memory& memory, float* scales) const {
  const AttendedSequence& sequence = *item.sequence;
  const int begin = std::max(block * kKeyBlock, sequence.first);
  const int end = std::min((block + 1) * kKeyBlock, sequence.first + sequence.positions);
  const int kv_head = item.head / (shape_.heads / shape_.kv_heads), from = begin - block * kKeyBlock;
  const std::size_t row = cached_row(sequence, begin), at = kv_head * cached.head_stride + row * cached.stride;
  if (!cached.codes) return {cached.data + at, cached.stride, from, end - begin, width};
  std::fill_n(scales, kKeyBlock, 0.0f);
  kernels_.attention->widen_scales(cached.scales + row * shape_.kv_heads + kv_head, shape_.kv_heads, end - begin,
                                   scales + from);
  for (int i = 0; i < end - begin; ++i)
    kernels_.attention->widen_codes(cached.codes + at + i * cached.stride, width, memory.widened + i * width);
  return {memory.widened, std::size_t(width), from, end - begin, width};
}

// Positions whose scale is not finite; a share of zero times it would be NaN, so it becomes zero.
static std::uint64_t broken_scales(float* scales) {
  std::uint64_t broken = 0;
  for (int i = 0; i < kKeyBlock; ++i)
    if (!std::isfinite(scales[i])) broken |= std::uint64_t(1) << i, scales[i] = 0;
  return broken;
}

void AttentionJob::attend(const Item& item, const Memory& memory) const {
  fill(item, memory);
  const int last = sight_of(item, item.tokens - 1).position / kKeyBlock;
  for (int block = sight_of(item, 0).first / kKeyBlock; block <= last; ++block) {
    const bool codes = item.sequence->keys.codes;
    float *key_scales = codes ? memory.scales->keys : nullptr, *value_scales = codes ? memory.scales->values : nullptr;
    kernels_.attention->pack_keys(
        rows_of(item.sequence->keys, item, block, shape_.width, memory, key_scales), memory.keys);
    std::uint64_t broken = kernels_.attention->pack_values(
        rows_of(item.sequence->values, item, block, shape_.value_width, memory, value_scales), memory.values);
    if (codes) broken |= broken_scales(value_scales);
    for (int tile = 0; tile < item.tiles(); tile += kTilesAtOnce)
      attend_tiles(item, memory, block, tile, broken);
  }
  write(item, memory);
}

// A bit for every position of the block that a token sees.
static std::uint64_t visible_bits(int first, int position, int block) {
  const int begin = std::clamp(first - block * kKeyBlock, 0, kKeyBlock);
  const int end = std::clamp(position + 1 - block * kKeyBlock, 0, kKeyBlock);
  if (begin >= end) return 0;
  return ~std::uint64_t(0) >> (kKeyBlock - (end - begin)) << begin;
}

// Up to four tiles of rows with one block, from number `tile` on.
void AttentionJob::attend_tiles(const Item& item, const Memory& memory, int block, int tile,
                                std::uint64_t broken) const {
  const int tiles = std::min(kTilesAtOnce, item.tiles() - tile), rows = tiles * kTileTokens;
  std::uint64_t seen = 0;
  for (int i = 0; i < rows; ++i) {
    const Sight sight = sight_of(item, row_of(item, tile + i / kTileTokens, i % kTileTokens).token);
    seen |= memory.visible[i] = visible_bits(sight.first, sight.position, block);
  }
  if (!seen) return;
  const int strips = divide_up(kKeyBlock - __builtin_clzll(seen), kStripOutputs);  // beyond: masked
  const std::size_t row = std::size_t(tile) * kTileTokens;
  const Panel queries{memory.queries + row * shape_.width * 2, nullptr, nullptr, rows, keys_.tiles, 0};
  multiply(keys_, memory.keys, strips, queries, memory.scores, memory.scratch);
  kernels_.attention->softmax({memory.scores, memory.visible, broken, rows, shape_.scale, memory.largest + row,
                               memory.sums + row, memory.shrink, memory.shares,
                               item.sequence->keys.codes ? memory.scales : nullptr});
  const Panel shares{memory.shares, nullptr, nullptr, rows, values_.tiles, 0};
  multiply(values_, memory.values, values_.strips, shares, memory.added, memory.scratch);
  kernels_.attention->add_mixed(memory.mixed + row * shape_.value_width, memory.added, memory.shrink, rows,
                                values_.strips);
}

void AttentionJob::multiply(const MatrixLayout& matrix, const std::uint8_t* strips, int count,
                            const Panel& panel, float* c, std::uint8_t* scratch) const {
  const std::uint8_t* at[kMaxValueStrips + 2];
  for (int s = 0; s < count; ++s) at[s] = strips + s * matrix.strip_bytes;
  at[count] = at[count + 1] = strips;  // prefetched: in the cache already
  const Product tiles = kernels_.tiles[int(Dtype::bf16)];
  (tiles ? tiles : kernels_.vector[int(Dtype::bf16)])(at, count, matrix, panel, c, scratch);
}

void AttentionJob::write(const Item& item, const Memory& memory) const {
  for (int tile = 0; tile < item.tiles(); ++tile) {
    const int first = tile / kTilesAtOnce * kTilesAtOnce;  // of those that were multiplied together
    const int rows = std::min(kTilesAtOnce, item.tiles() - first) * kTileTokens;
    const float* mixed = memory.mixed + std::size_t(first) * kTileTokens * shape_.value_width +
                         std::size_t(tile - first) * kTileTokens * kStripOutputs;
    for (int i = 0; i < kTileTokens; ++i) {
      const Row row = row_of(item, tile, i);
      if (!row.there) break;
      std::uint16_t* out = item.sequence->out +
                           (std::size_t(item.token + row.token) * shape_.heads + row.head) * shape_.value_width;
      kernels_.attention->divide(mixed + i * kStripOutputs, std::size_t(rows) * kStripOutputs,
                                 memory.sums[tile * kTileTokens + i], shape_.value_width, out);
    }
  }
}

}  // namespace moesaic
