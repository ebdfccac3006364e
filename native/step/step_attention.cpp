// Attention of a decode step: one new token per sequence, over the KV cache.
#include <cmath>
#include <cstring>

#include "step/step_job.h"

namespace moesaic {

Turn StepJob::turn_of(const StepAttention& of, int token) const {
  const StepRope& rope = network_.ropes[of.rope];
  const std::size_t at = first_angle_[of.rope] + std::size_t(token) * (rope.dim / 2);
  return {buffers_.cos + at, buffers_.sin + at, rope.dim, rope.interleaved};
}

void StepJob::turn_tokens() {
  std::size_t at = 0;
  for (const StepRope& rope : network_.ropes) {
    first_angle_.push_back(at);
    for (int t = 0; t < call_.tokens; ++t)
      for (int i = 0; i < rope.dim / 2; ++i, ++at) {
        const float angle = float(call_.positions[t]) * rope.frequencies[i];
        buffers_.cos[at] = std::cos(angle) * rope.magnitude;
        buffers_.sin[at] = std::sin(angle) * rope.magnitude;
      }
  }
}

// Writes one head of a new token into a layer's cache, whose rows have `heads` of them in `width` values.
void StepJob::keep(const StepCached& to, int token, const std::uint16_t* from, int width, int heads,
                   int head) const {
  const std::size_t row = cache_row(table_of(token), int(call_.positions[token]));
  const int of_head = width / heads;
  const std::size_t at = row * width + std::size_t(head) * of_head;
  if (to.codes)
    to.scales[row * heads + head] = kernels_.attention->round_codes(from, of_head, to.codes + at);
  else
    std::memcpy(to.values + at, from, of_head * 2);
}

// Norms over whole projections and clipping; what concerns single heads is done with their attention.
void StepJob::prepare_projections(const StepLayer& layer) {
  const StepAttention& of = layer.attention;
  const int queries = of.queries(), keys = of.keys();
  for (int t = 0; t < call_.tokens; ++t) {
    std::uint16_t* query = buffers_.query + std::size_t(t) * queries;
    std::uint16_t* key = buffers_.key + std::size_t(t) * keys;
    if (QkNorm(of.qk_norm) == QkNorm::projection) {
      kernels_.rms_norm(query, layer.query_norm, FloatType::bf16, queries, of.eps, query);
      kernels_.rms_norm(key, layer.key_norm, FloatType::bf16, keys, of.eps, key);
    }
    if (of.clip > 0) {
      step_.clip(query, queries, of.clip);
      step_.clip(key, keys, of.clip);
      step_.clip(buffers_.value + std::size_t(t) * keys, keys, of.clip);
    }
  }
}

// A group's queries [heads, head_dim], normalised and rotated in the worker's memory: cheaper for every
// worker that has parts of the sequence than waiting until one has done it.
const float* StepJob::prepared_queries(int number, int token, int group, int worker) {
  const StepAttention& of = network_.layers[number].attention;
  const int heads = of.heads_at_once(), width = of.head_dim;
  std::uint8_t* memory = memory_of(worker) + buffers_.score_bytes;
  float* wide = reinterpret_cast<float*>(memory);
  const std::int64_t which =
      (std::int64_t(number) * call_.tokens + token) * std::int64_t(buffers_.most.groups) + group;
  if (prepared_[worker].queries == which) return wide;
  prepared_[worker].queries = which;
  auto* rounded = reinterpret_cast<std::uint16_t*>(wide + std::size_t(heads) * width);
  const std::uint16_t* from =
      buffers_.query + (std::size_t(token) * of.heads + std::size_t(group) * heads) * width;
  for (int h = 0; h < heads; ++h) {
    if (QkNorm(of.qk_norm) == QkNorm::head)
      kernels_.rms_norm(from + h * width, network_.layers[number].query_norm, FloatType::bf16, width, of.eps,
                        rounded);
    else
      std::memcpy(rounded, from + h * width, width * 2);
    step_.rotate(rounded, turn_of(of, token));
    step_.widen(rounded, width, wide + h * width);
  }
  return wide;
}

void StepJob::prepare_latent_query(const StepAttention& of, int token, int head) {
  const std::size_t at = std::size_t(token) * of.heads + head;
  const int rope = of.rope_key_dim, plain = of.plain_dim;
  std::uint16_t* query = buffers_.query + at * of.head_dim;
  step_.rotate(query + plain, turn_of(of, token));
  step_.widen(query, plain, buffers_.wide_query + at * plain);
  step_.widen(query + plain, rope, buffers_.rope_query + at * rope);
}

void StepJob::cache_key(const StepLayer& layer, int number, int token, int head) {
  const StepAttention& of = layer.attention;
  const StepLayerCache& kept = cache_.layers[number];
  const int keys = of.keys(), width = of.head_dim;
  const std::size_t at = std::size_t(token) * keys + std::size_t(head) * width;
  std::uint16_t* key = buffers_.key + at;
  if (QkNorm(of.qk_norm) == QkNorm::head)
    kernels_.rms_norm(key, layer.key_norm, FloatType::bf16, width, of.eps, key);
  step_.rotate(key, turn_of(of, token));
  keep(kept.first, token, key, keys, of.kv_heads, head);
  keep(kept.second, token, buffers_.value + at, keys, of.kv_heads, head);
}

void StepJob::cache_latent(const StepLayer& layer, int number, int token) {
  const StepAttention& of = layer.attention;
  const StepLayerCache& kept = cache_.layers[number];
  const int rank = of.rank, rope = of.rope_key_dim;
  std::uint16_t* compressed = buffers_.key + std::size_t(token) * (rank + rope);
  kernels_.rms_norm(compressed, layer.key_norm, FloatType::bf16, rank, of.eps, compressed);
  step_.rotate(compressed + rank, turn_of(of, token));
  keep(kept.first, token, compressed, rank, 1, 0);
  keep(kept.second, token, compressed + rank, rope, 1, 0);
}

int StepJob::begin_query_up(const StepLayer& layer) {
  if (!layer.query_down.data) return 0;
  const int rank = layer.attention.query_rank;
  for (int t = 0; t < call_.tokens; ++t) {
    std::uint16_t* row = buffers_.query_down + std::size_t(t) * rank;
    kernels_.rms_norm(row, layer.query_norm, FloatType::bf16, rank, layer.attention.eps, row);
    fill(layer.query, row, t, 0, rank);
  }
  return begin_products(query_up(layer));
}

// A head's plain queries times the expansion from latents to its keys: scores come from latents directly.
void StepJob::absorb(const StepLayer& layer, int head) {
  const StepAttention& of = layer.attention;
  const int rank = of.rank, plain = of.plain_dim;
  const std::uint16_t* matrix = layer.expand + std::size_t(head) * (plain + of.value_dim) * rank;
  for (int t = 0; t < call_.tokens; ++t) {
    const std::size_t at = std::size_t(t) * of.heads + head;
    float* out = buffers_.absorbed + at * rank;
    prepare_latent_query(of, t, head);
    step_.combine_rows(buffers_.wide_query + at * plain, matrix, plain, rank, out);
    std::uint16_t* rounded = buffers_.mixed_latent + at * rank;  // free until attention
    kernels_.narrow(out, rank, FloatType::bf16, rounded);  // no strips: the next head's begins behind them
    step_.widen(rounded, rank, out);
  }
}

void StepJob::expand(const StepLayer& layer, int head) {
  const StepAttention& of = layer.attention;
  const int rank = of.rank, plain = of.plain_dim, width = of.value_dim;
  const std::uint16_t* matrix = layer.expand + (std::size_t(head) * (plain + width) + plain) * rank;
  for (int t = 0; t < call_.tokens; ++t) {
    const std::size_t at = std::size_t(t) * of.heads + head;
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
  if (!layer.attention.latent()) prepare_projections(layer);
  const int groups = layer.attention.groups();
  for (int t = 0; t < call_.tokens; ++t)
    for (int g = 0; g < groups; ++g)
      unfinished_parts_[std::size_t(t) * groups + g].store(buffers_.parts[t].count,
                                                           std::memory_order_relaxed);
  ranges_.reset(attention_items(layer.attention));
  return worker_slots_;
}

StepJob::ItemPart StepJob::part_of(const StepAttention& of, int item) const {
  int token = call_.tokens - 1;
  while (item < buffers_.parts[token].first_item(of)) --token;
  const Parts& parts = buffers_.parts[token];
  const int within = item - parts.first_item(of), part = within % parts.count, first = part * parts.positions;
  return {token, within / parts.count, part, first, std::min(parts.positions, parts.length - first)};
}

void StepJob::run_attention(int number, int item, int worker) {
  const StepLayer& layer = network_.layers[number];
  const StepAttention& of = layer.attention;
  const StepLayerCache& kept = cache_.layers[number];
  const auto [token, group, part, first, positions] = part_of(of, item);
  const Parts& parts = buffers_.parts[token];
  const int heads = of.heads_at_once(), first_head = group * heads;
  const std::size_t scalar = parts.first_scalar(of) + (std::size_t(group) * parts.count + part) * heads;
  AttentionCall call;
  call.heads = std::min(heads, of.heads - first_head);
  call.table = table_of(token), call.first = first, call.positions = positions;
  call.scale = of.scale;
  call.scores = reinterpret_cast<float*>(memory_of(worker));
  call.largest = buffers_.largest + scalar;
  call.sums = buffers_.sums + scalar;
  const int width = of.keys();
  if (of.latent()) {
    const int rope = of.rope_key_dim;
    const std::size_t at = std::size_t(token) * of.heads + first_head;
    call.parts[0] = {buffers_.absorbed + at * width, kept.first.from(width, 1, 0), width};
    call.parts[1] = {buffers_.rope_query + at * rope, kept.second.from(rope, 1, 0), rope};
    call.values = call.parts[0].keys;
    call.value_width = width;
  } else {
    const int head = of.head_dim;
    if (part + 1 == parts.count) cache_key(layer, number, token, group);
    const float* queries = prepared_queries(number, token, group, worker);
    call.parts[0] = {queries, kept.first.from(width, of.kv_heads, group), head};
    call.values = kept.second.from(width, of.kv_heads, group);
    call.value_width = head;
  }
  call.mixed = buffers_.mixed + scalar * call.value_width;
  step_.attend(call);
  const std::size_t index = std::size_t(token) * of.groups() + group;
  if (unfinished_parts_[index].fetch_sub(1, std::memory_order_acq_rel) == 1) merge(layer, token, group);
}

void StepJob::merge(const StepLayer& layer, int token, int group) {
  const StepAttention& of = layer.attention;
  const Parts& parts = buffers_.parts[token];
  const int heads = of.heads_at_once(), first_head = group * heads, width = of.mixed();
  const std::size_t scalar = parts.first_scalar(of) + std::size_t(group) * parts.count * heads;
  std::uint16_t* to = (of.latent() ? buffers_.mixed_latent : buffers_.attended) +
                      (std::size_t(token) * of.heads + first_head) * width;
  for (int h = 0; h < heads && first_head + h < of.heads; ++h)
    step_.merge(buffers_.largest + scalar + h, buffers_.sums + scalar + h,
                buffers_.mixed + (scalar + h) * width, parts.count, heads, std::size_t(heads) * width, width,
                to + std::size_t(h) * width);
  if (!of.latent() && fills_attended(layer))
    fill(layer.output, to, token, first_head * width, attended_columns(of));
}

int StepJob::begin_output(const StepLayer& layer) {
  const int width = layer.attention.attended();
  for (int t = 0; !fills_attended(layer) && t < call_.tokens; ++t)
    fill(layer.output, buffers_.attended + std::size_t(t) * width, t, 0, width);
  return begin_products(output(layer));
}

}  // namespace moesaic
