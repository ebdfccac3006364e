// Attention of a decode step: one new token per sequence, over the KV cache.
#include <cmath>
#include <cstring>

#include "step/step_job.h"

namespace moesaic {

Turn StepJob::turn_of(int token) const {
  const std::size_t at = std::size_t(token) * (sizes_.rope_dim / 2);
  return {buffers_.cos + at, buffers_.sin + at, sizes_.rope_dim, sizes_.rope_interleaved};
}

void StepJob::turn_tokens() {
  const int half = sizes_.rope_dim / 2;
  for (int t = 0; t < call_.tokens; ++t)
    for (int i = 0; i < half; ++i) {
      const float angle = float(call_.positions[t]) * network_.frequencies[i];
      buffers_.cos[t * half + i] = std::cos(angle) * sizes_.rope_magnitude;
      buffers_.sin[t * half + i] = std::sin(angle) * sizes_.rope_magnitude;
    }
}

std::uint16_t* StepJob::cached(std::uint16_t* base, int width, int number, int token, int position) const {
  const std::size_t sequence = std::size_t(number) * cache_.slots + std::size_t(call_.slots[token]);
  return base + (sequence * cache_.length + std::size_t(position)) * width;
}

// Norms over whole projections and clipping; what concerns single heads is done with their attention.
void StepJob::prepare_projections(const StepLayer& layer) {
  const int queries = sizes_.queries(), keys = sizes_.keys();
  for (int t = 0; t < call_.tokens; ++t) {
    std::uint16_t* query = buffers_.query + std::size_t(t) * queries;
    std::uint16_t* key = buffers_.key + std::size_t(t) * keys;
    if (QkNorm(sizes_.qk_norm) == QkNorm::projection) {
      kernels_.rms_norm(query, layer.query_norm, FloatType::bf16, queries, sizes_.eps, query);
      kernels_.rms_norm(key, layer.key_norm, FloatType::bf16, keys, sizes_.eps, key);
    }
    if (sizes_.clip > 0) {
      step_.clip(query, queries, sizes_.clip);
      step_.clip(key, keys, sizes_.clip);
      step_.clip(buffers_.value + std::size_t(t) * keys, keys, sizes_.clip);
    }
  }
}

// A group's queries [heads, head_dim], normalised and rotated in the worker's memory: cheaper for every
// worker that has parts of the sequence than waiting until one has done it.
const float* StepJob::prepared_queries(int number, int token, int group, int worker) {
  const int heads = buffers_.heads_at_once, width = sizes_.head_dim;
  std::uint8_t* memory = memory_of(worker) + buffers_.score_bytes;
  float* wide = reinterpret_cast<float*>(memory);
  const std::int64_t which =
      (std::int64_t(number) * call_.tokens + token) * buffers_.groups(sizes_) + group;
  if (prepared_[worker].queries == which) return wide;
  prepared_[worker].queries = which;
  auto* rounded = reinterpret_cast<std::uint16_t*>(wide + std::size_t(heads) * width);
  const std::uint16_t* from =
      buffers_.query + (std::size_t(token) * sizes_.heads + std::size_t(group) * heads) * width;
  for (int h = 0; h < heads; ++h) {
    if (QkNorm(sizes_.qk_norm) == QkNorm::head)
      kernels_.rms_norm(from + h * width, network_.layers[number].query_norm, FloatType::bf16, width,
                        sizes_.eps, rounded);
    else
      std::memcpy(rounded, from + h * width, width * 2);
    step_.rotate(rounded, turn_of(token));
    step_.widen(rounded, width, wide + h * width);
  }
  return wide;
}

void StepJob::prepare_latent_query(int token, int head) {
  const std::size_t at = std::size_t(token) * sizes_.heads + head;
  const int rope = sizes_.rope_key_dim, plain = sizes_.plain_dim;
  std::uint16_t* query = buffers_.query + at * sizes_.head_dim;
  step_.rotate(query + plain, turn_of(token));
  step_.widen(query, plain, buffers_.wide_query + at * plain);
  step_.widen(query + plain, rope, buffers_.rope_query + at * rope);
}

void StepJob::cache_key(const StepLayer& layer, int number, int token, int head) {
  const int keys = sizes_.keys(), width = sizes_.head_dim, position = int(call_.positions[token]);
  const std::size_t at = std::size_t(token) * keys + std::size_t(head) * width;
  std::uint16_t* key = buffers_.key + at;
  if (QkNorm(sizes_.qk_norm) == QkNorm::head)
    kernels_.rms_norm(key, layer.key_norm, FloatType::bf16, width, sizes_.eps, key);
  step_.rotate(key, turn_of(token));
  const std::size_t column = std::size_t(head) * width;
  std::memcpy(cached(cache_.first, keys, number, token, position) + column, key, width * 2);
  std::memcpy(cached(cache_.second, keys, number, token, position) + column, buffers_.value + at, width * 2);
}

void StepJob::cache_latent(const StepLayer& layer, int number, int token) {
  const int rank = sizes_.rank, rope = sizes_.rope_key_dim, position = int(call_.positions[token]);
  std::uint16_t* compressed = buffers_.key + std::size_t(token) * (rank + rope);
  kernels_.rms_norm(compressed, layer.key_norm, FloatType::bf16, rank, sizes_.latent_eps, compressed);
  step_.rotate(compressed + rank, turn_of(token));
  std::memcpy(cached(cache_.first, rank, number, token, position), compressed, rank * 2);
  std::memcpy(cached(cache_.second, rope, number, token, position), compressed + rank, rope * 2);
}

int StepJob::begin_query_up(const StepLayer& layer) {
  if (!layer.query_down.data) return 0;
  for (int t = 0; t < call_.tokens; ++t) {
    std::uint16_t* row = buffers_.query_down + std::size_t(t) * sizes_.query_rank;
    kernels_.rms_norm(row, layer.query_norm, FloatType::bf16, sizes_.query_rank, sizes_.latent_eps, row);
    fill(layer.query, row, t, 0, sizes_.query_rank);
  }
  return begin_products(query_up(layer));
}

// A head's plain queries times the expansion from latents to its keys: scores come from latents directly.
void StepJob::absorb(const StepLayer& layer, int head) {
  const int rank = sizes_.rank, plain = sizes_.plain_dim;
  const std::uint16_t* matrix = layer.expand + std::size_t(head) * (plain + sizes_.value_dim) * rank;
  for (int t = 0; t < call_.tokens; ++t) {
    const std::size_t at = std::size_t(t) * sizes_.heads + head;
    float* out = buffers_.absorbed + at * rank;
    prepare_latent_query(t, head);
    step_.combine_rows(buffers_.wide_query + at * plain, matrix, plain, rank, out);
    std::uint16_t* rounded = buffers_.mixed_latent + at * rank;  // free until attention
    kernels_.narrow(out, rank, FloatType::bf16, rounded);  // no strips: the next head's begins behind them
    step_.widen(rounded, rank, out);
  }
}

void StepJob::expand(const StepLayer& layer, int head) {
  const int rank = sizes_.rank, plain = sizes_.plain_dim, width = sizes_.value_dim;
  const std::uint16_t* matrix = layer.expand + (std::size_t(head) * (plain + width) + plain) * rank;
  for (int t = 0; t < call_.tokens; ++t) {
    const std::size_t at = std::size_t(t) * sizes_.heads + head;
    float* values = buffers_.absorbed + at * rank;  // no longer needed; a head's value may be wider
    for (int done = 0; done < width; done += rank) {
      const int rows = std::min(rank, width - done);
      kernels_.router_scores(buffers_.mixed_latent + at * rank, matrix + std::size_t(done) * rank,
                             FloatType::bf16, rows, rank, values);
      kernels_.narrow(values, rows, FloatType::bf16, buffers_.attended + at * width + done);
    }
    if (fills_attended(layer)) fill(layer.output, buffers_.attended + at * width, t, head * width, width);
  }
}

int StepJob::begin_attention(const StepLayer& layer) {
  if (!sizes_.latent()) prepare_projections(layer);
  const int groups = buffers_.groups(sizes_);
  for (int t = 0; t < call_.tokens; ++t)
    for (int g = 0; g < groups; ++g)
      unfinished_parts_[std::size_t(t) * groups + g].store(buffers_.parts[t].count,
                                                           std::memory_order_relaxed);
  ranges_.reset(attention_items());
  return worker_slots_;
}

StepJob::ItemPart StepJob::part_of(int item) const {
  int token = call_.tokens - 1;
  while (item < buffers_.parts[token].first_item) --token;
  const Parts& parts = buffers_.parts[token];
  const int within = item - parts.first_item, part = within % parts.count, first = part * parts.positions;
  return {token, within / parts.count, part, first, std::min(parts.positions, parts.length - first)};
}

void StepJob::run_attention(int number, int item, int worker) {
  const auto [token, group, part, first, positions] = part_of(item);
  const Parts& parts = buffers_.parts[token];
  const int heads = buffers_.heads_at_once, first_head = group * heads;
  const std::size_t scalar = parts.first_scalar + (std::size_t(group) * parts.count + part) * heads;
  AttentionCall call;
  call.heads = std::min(heads, sizes_.heads - first_head);
  call.positions = positions;
  call.scale = sizes_.scale;
  call.scores = reinterpret_cast<float*>(memory_of(worker));
  call.largest = buffers_.largest + scalar;
  call.sums = buffers_.sums + scalar;
  const int width = sizes_.keys();
  const std::uint16_t* keys = cached(cache_.first, width, number, token, first);
  call.value_stride = width;
  if (sizes_.latent()) {
    const int rope = sizes_.rope_key_dim;
    const std::size_t at = std::size_t(token) * sizes_.heads + first_head;
    call.parts[0] = {buffers_.absorbed + at * width, keys, std::size_t(width), width};
    call.parts[1] = {buffers_.rope_query + at * rope, cached(cache_.second, rope, number, token, first),
                     std::size_t(rope), rope};
    call.values = keys;
    call.value_width = width;
  } else {
    const int head = sizes_.head_dim;
    if (part + 1 == parts.count) cache_key(network_.layers[number], number, token, group);
    const float* queries = prepared_queries(number, token, group, worker);
    call.parts[0] = {queries, keys + group * head, std::size_t(width), head};
    call.values = cached(cache_.second, width, number, token, first) + group * head;
    call.value_width = head;
  }
  call.mixed = buffers_.mixed + scalar * call.value_width;
  step_.attend(call);
  const std::size_t index = std::size_t(token) * buffers_.groups(sizes_) + group;
  if (unfinished_parts_[index].fetch_sub(1, std::memory_order_acq_rel) == 1)
    merge(network_.layers[number], token, group);
}

void StepJob::merge(const StepLayer& layer, int token, int group) {
  const Parts& parts = buffers_.parts[token];
  const int heads = buffers_.heads_at_once, first_head = group * heads;
  const int width = sizes_.latent() ? sizes_.rank : sizes_.head_dim;
  const std::size_t scalar = parts.first_scalar + std::size_t(group) * parts.count * heads;
  std::uint16_t* to = (sizes_.latent() ? buffers_.mixed_latent : buffers_.attended) +
                      (std::size_t(token) * sizes_.heads + first_head) * width;
  for (int h = 0; h < heads && first_head + h < sizes_.heads; ++h)
    step_.merge(buffers_.largest + scalar + h, buffers_.sums + scalar + h,
                buffers_.mixed + (scalar + h) * width, parts.count, heads, std::size_t(heads) * width, width,
                to + std::size_t(h) * width);
  if (!sizes_.latent() && fills_attended(layer))
    fill(layer.output, to, token, first_head * width, attended_columns());
}

int StepJob::begin_output(const StepLayer& layer) {
  const int width = sizes_.attended();
  for (int t = 0; !fills_attended(layer) && t < call_.tokens; ++t)
    fill(layer.output, buffers_.attended + std::size_t(t) * width, t, 0, width);
  return begin_products(output(layer));
}

}  // namespace moesaic
