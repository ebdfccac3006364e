#include "layer/layer_job.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace moesaic {
namespace {

Panel panel_at(const MatrixLayout& matrix, int tokens, std::uint8_t* data, std::uint8_t* scales,
               std::uint8_t* sums) {
  return {data,
          reinterpret_cast<float*>(scales),
          reinterpret_cast<std::int32_t*>(sums),
          tokens,
          matrix.tiles,
          matrix.groups};
}

}  // namespace

void RoutedRows::assign(const LayerCall& call) {
  index_of_.assign(call.experts_total, -1);
  load_.assign(call.count, 0);
  for (int i = 0; i < call.count; ++i) index_of_[call.experts[i]] = i;
  const std::size_t pairs = std::size_t(call.tokens) * call.top_k;
  for (std::size_t p = 0; p < pairs; ++p)
    if (const int i = index_of_[call.ids[p]]; i >= 0) ++load_[i];
  order_.clear();
  for (int i = 0; i < call.count; ++i)
    if (load_[i]) order_.push_back(i);
  std::sort(order_.begin(), order_.end(),
            [&](int a, int b) { return load_[a] != load_[b] ? load_[a] > load_[b] : a < b; });
  next_row_.assign(call.count, 0);
  chunks.clear();
  int rows = 0;
  for (const int i : order_) {
    next_row_[i] = rows;
    for (int done = 0; done < load_[i]; done += kChunkTokens) {
      Chunk chunk{};
      chunk.block = call.blocks[i];
      chunk.expert = call.experts[i];
      chunk.tokens = std::min(kChunkTokens, load_[i] - done);
      chunk.first_row = rows + done;
      chunks.push_back(chunk);
    }
    rows += load_[i];
  }
  token.resize(rows);
  weight.resize(rows);
  for (std::size_t p = 0; p < pairs; ++p)
    if (const int i = index_of_[call.ids[p]]; i >= 0) {
      const int row = next_row_[i]++;
      token[row] = std::int32_t(p / call.top_k);
      weight[row] = call.weights[p];
    }
}

LayerJob::LayerJob(const LayerConfig& config, int worker_slots)
    : config_(config),
      worker_slots_(worker_slots),
      row_bytes_(config.layout),
      worker_bytes_(config.layout, 0) {}

void LayerJob::begin_rows(const LayerCall& call) {
  call_ = call;
  worker_bytes_ = WorkerBuffers(config_.layout, rows_.max_chunk_tokens());
  // Unless the token has the same expert twice.
  shared_panel_ = call.tokens == 1 && rows_.count() && rows_.token.size() == rows_.chunks.size();
  gathered_chunk_.assign(worker_slots_, -1);
}

void LayerJob::worker_done() {
  if (config_.kernels->release_tiles) config_.kernels->release_tiles();
}

void LayerJob::finished() {
  if (call_.done_ns) *call_.done_ns = now_ns();
  if (call_.done_flag) std::atomic_ref(*call_.done_flag).store(call_.done_value, std::memory_order_release);
}

std::uint8_t* LayerJob::allocate(Workspace& workspace, int count, std::size_t extra) {
  const ExpertLayout& layout = config_.layout;
  const std::size_t rows = count;
  const std::size_t sums = std::size_t(call_.tokens) * layout.down.strips * kStripOutputs * sizeof(float);
  workspace.reset(rows * row_bytes_.wave_total() + round_up(sums) + worker_slots_ * worker_bytes_.total +
                  extra + 16 * kAlignment);
  intermediate_f32_ = reinterpret_cast<float*>(workspace.take(rows * row_bytes_.intermediate_f32));
  std::uint8_t* panel = workspace.take(rows * row_bytes_.intermediate_panel);
  std::uint8_t* scales = workspace.take(rows * row_bytes_.intermediate_scales);
  std::uint8_t* code_sums = workspace.take(rows * row_bytes_.intermediate_scales);
  sums_ = reinterpret_cast<float*>(workspace.take(sums));
  workers_ = workspace.take(worker_slots_ * worker_bytes_.total);
  for (Chunk& chunk : rows_.chunks) {
    const std::size_t row = chunk.first_wave_row;
    chunk.intermediate = panel_at(layout.down, chunk.tokens, panel + row * row_bytes_.intermediate_panel,
                                  scales + row * row_bytes_.intermediate_scales,
                                  code_sums + row * row_bytes_.intermediate_scales);
  }
  if (shared_panel_ && !call_.inputs) gather(rows_.chunks[0], input_panel(0));
  return workspace.take(extra);
}

Panel LayerJob::input_panel(int worker) {
  std::uint8_t* at = worker_memory(worker) + worker_bytes_.sums;
  std::uint8_t* scales = at + worker_bytes_.inputs;
  return panel_at(config_.layout.up, 1, at, scales, scales + worker_bytes_.scales);
}

// A chunk's inputs in the worker's own memory: gathering them brings them into its cache.
Panel LayerJob::gathered_inputs(int chunk_index, int worker) {
  if (shared_panel_) return call_.inputs ? *call_.inputs : input_panel(0);
  Panel inputs = input_panel(worker);
  inputs.tokens = rows_.chunks[chunk_index].tokens;
  if (gathered_chunk_[worker] != chunk_index) gather(rows_.chunks[chunk_index], inputs);
  gathered_chunk_[worker] = chunk_index;
  return inputs;
}

void LayerJob::gather(const Chunk& chunk, const Panel& to) {
  const std::size_t row_bytes =
      call_.hidden_stride * (call_.hidden_type == FloatType::f32 ? sizeof(float) : 2);
  for (int tile = 0; tile * kTileTokens < chunk.tokens; ++tile) {
    const void* rows[kTileTokens];
    const std::int32_t* tokens = rows_.token.data() + chunk.first_row + tile * kTileTokens;
    for (int t = 0; t < to.tile_tokens(tile); ++t)
      rows[t] = static_cast<const char*>(call_.hidden) + tokens[t] * row_bytes;
    fill(chunk, to, tile, rows, call_.hidden_type, config_.layout.hidden, kStripOutputs);
  }
}

void LayerJob::quantise_intermediate(const Chunk& chunk, int token_tile) {
  const void* rows[kTileTokens];
  const int first = token_tile * kTileTokens, count = chunk.intermediate.tile_tokens(token_tile);
  for (int t = 0; t < count; ++t) rows[t] = intermediate_strip(chunk, 0) + (first + t) * kStripOutputs;
  fill(chunk, chunk.intermediate, token_tile, rows, FloatType::f32, config_.layout.intermediate,
       std::size_t(chunk.tokens) * kStripOutputs);
}

void LayerJob::fill(const Chunk& chunk, const Panel& panel, int token_tile, const void* const* rows,
                    FloatType type, int inputs, std::size_t block_stride) {
  const std::size_t at = std::size_t(token_tile) * kTileTokens * panel.groups;
  config_.fill(chunk.tokens)({.rows = rows,
                              .type = type,
                              .block_stride = block_stride,
                              .count = panel.tile_tokens(token_tile),
                              .inputs = inputs,
                              .tiles = panel.tiles,
                              .groups = panel.groups,
                              .tile = const_cast<std::uint8_t*>(panel.tile(token_tile)),
                              .scales = const_cast<float*>(panel.scales) + at,
                              .code_sums = const_cast<std::int32_t*>(panel.code_sums) + at,
                              .tile_rows = panel.tile_tokens(token_tile),
                              .group_stride = panel.groups});
}

// Intermediate activations in fp32: [strip][token][16].
float* LayerJob::intermediate_strip(const Chunk& chunk, int strip) {
  return intermediate_f32_ + chunk.first_wave_row * (row_bytes_.intermediate_f32 / sizeof(float)) +
         std::size_t(strip) * chunk.tokens * kStripOutputs;
}

PrefetchTarget LayerJob::gate_and_up_strips(const Chunk& chunk, int strip) const {
  return {{chunk.block + config_.layout.gate_strip(strip), chunk.block + config_.layout.up_strip(strip)}};
}

PrefetchTarget LayerJob::down_strips(const Chunk& chunk, int strip) const {
  const std::uint8_t* at = chunk.block + config_.layout.down_strip(strip);
  return {{at, at + config_.layout.down.strip_bytes}};
}

void LayerJob::gate_and_up(int chunk_index, int strip, int strips, int worker, const PrefetchTarget& next) {
  const Chunk& chunk = rows_.chunks[chunk_index];
  const Panel in = gathered_inputs(chunk_index, worker);
  // With many tokens, a product of several strips uses each K block of the inputs for all of them.
  const int at_once = chunk.tokens > kMemoryBoundTokens ? max_strips(config_.layout.up) / 2 : 1;
  for (int done = 0; done < strips; done += at_once) {
    const int first = strip + done, count = std::min(at_once, strips - done);
    const std::uint8_t* at[kMaxStrips + 2];
    for (int i = 0; i <= count; ++i) {
      const PrefetchTarget pair = done + i < strips ? gate_and_up_strips(chunk, first + i) : next;
      at[2 * i] = pair.strips[0], at[2 * i + 1] = pair.strips[1];
    }
    float* c = product_sums(worker);
    config_.product(chunk.tokens)(at, 2 * count, config_.layout.up, in, c, scratch_of(worker));
    for (int i = 0; i < count; ++i) {
      const float* gate = c + std::size_t(2 * i) * chunk.tokens * 16;
      const float* up = gate + std::size_t(chunk.tokens) * 16;
      if (config_.bf16_intermediate(chunk.tokens))
        activate_into_panel(chunk, first + i, gate, up);
      else
        config_.kernels->activate(config_.activation, gate, up, chunk.tokens,
                                  intermediate_strip(chunk, first + i), kStripOutputs);
    }
  }
}

// Two strips fill a token's row of a tile; after an odd last strip the second half is zero.
void LayerJob::activate_into_panel(const Chunk& chunk, int strip, const float* gate, const float* up) {
  const bool odd_last = strip + 1 == config_.layout.up.strips && strip % 2 == 0;
  for (int tile = 0; tile * kTileTokens < chunk.tokens; ++tile) {
    const int rows = chunk.intermediate.tile_tokens(tile), first = tile * kTileTokens * kStripOutputs;
    std::uint8_t* to = const_cast<std::uint8_t*>(chunk.intermediate.tile(tile)) +
                       std::size_t(strip / 2) * rows * kRowBytes + strip % 2 * (kRowBytes / 2);
    config_.kernels->activate_bf16(config_.activation, gate + first, up + first, rows, to, kRowBytes);
    for (int t = 0; odd_last && t < rows; ++t)
      std::memset(to + t * kRowBytes + kRowBytes / 2, 0, kRowBytes / 2);
  }
}

void LayerJob::down_product(const Chunk& chunk, int strip, int strips, float* c, int worker,
                            const PrefetchTarget& next) {
  const std::uint8_t* at[kMaxStrips + 2];
  for (int s = 0; s < strips; ++s) at[s] = down_strips(chunk, strip + s).strips[0];
  at[strips] = next.strips[0], at[strips + 1] = next.strips[1];
  config_.product(chunk.tokens)(at, strips, config_.layout.down, chunk.intermediate, c, scratch_of(worker));
}

void LayerJob::add_to_sums(const Chunk& chunk, int strip, int strips, const float* c) {
  for (int s = 0; s < strips; ++s)
    config_.kernels->scatter_add(c + std::size_t(s) * chunk.tokens * 16, chunk.tokens,
                                 rows_.token.data() + chunk.first_row, rows_.weight.data() + chunk.first_row,
                                 sum_strip(strip + s), kStripOutputs);
}

void LayerJob::init_sums(int strip, int strips) {
  for (int s = strip; s < strip + strips; ++s) {
    const int columns = width(s);
    std::memset(sum_strip(s), 0, std::size_t(call_.tokens) * kStripOutputs * sizeof(float));
    for (int t = 0; call_.add && call_.out_type == FloatType::f32 && t < call_.tokens; ++t)
      std::memcpy(sum_strip(s) + t * kStripOutputs, out_at<float>(t, s), columns * sizeof(float));
  }
}

void LayerJob::add_rounded(const float* from, int count, std::uint16_t* to) {
  std::uint16_t rounded[kStripOutputs];
  config_.kernels->narrow(from, count, FloatType::bf16, rounded);
  config_.kernels->step->add_residual(to, rounded, nullptr, 1.0f, count);
}

void LayerJob::write_result(int strip, int strips) {
  for (int t = 0; t < call_.tokens; ++t) {
    for (int s = strip; s < strip + strips; ++s) {
      const float* from = sum_strip(s) + std::size_t(t) * kStripOutputs;
      if (call_.out_type == FloatType::f32)
        std::memcpy(out_at<float>(t, s), from, width(s) * sizeof(float));
      else if (call_.add)
        add_rounded(from, width(s), out_at<std::uint16_t>(t, s));
      else
        config_.kernels->narrow(from, width(s), call_.out_type, out_at<std::uint16_t>(t, s));
    }
  }
}

}  // namespace moesaic
