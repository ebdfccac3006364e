#include "layer/layer_job.h"

#include <algorithm>
#include <cstring>

namespace moesaic {
namespace {

Panel panel_at(const MatrixLayout& matrix, int tokens, std::uint8_t* data, std::uint8_t* scales,
               std::uint8_t* sums) {
  return {data, reinterpret_cast<float*>(scales), reinterpret_cast<std::int32_t*>(sums), tokens,
          matrix.tiles, matrix.groups};
}

}  // namespace

Rows::Rows(const LayerCall& call) {
  std::vector<int> place(call.experts_total, -1), load(call.count, 0);
  for (int i = 0; i < call.count; ++i) place[call.experts[i]] = i;
  const std::size_t pairs = std::size_t(call.tokens) * call.top_k;
  for (std::size_t p = 0; p < pairs; ++p)
    if (const int at = place[call.ids[p]]; at >= 0) ++load[at];
  std::vector<int> order;
  for (int i = 0; i < call.count; ++i)
    if (load[i]) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return load[a] > load[b]; });
  std::vector<int> next(call.count, 0);
  int rows = 0;
  for (const int i : order) {
    next[i] = rows;
    for (int done = 0; done < load[i]; done += kChunkTokens) {
      Chunk chunk{};
      chunk.block = call.blocks[i];
      chunk.tokens = std::min(kChunkTokens, load[i] - done);
      chunk.first = rows + done;
      chunks.push_back(chunk);
    }
    rows += load[i];
  }
  token.resize(rows);
  weight.resize(rows);
  for (std::size_t p = 0; p < pairs; ++p)
    if (const int at = place[call.ids[p]]; at >= 0) {
      const int row = next[at]++;
      token[row] = std::int32_t(p / call.top_k);
      weight[row] = call.weights[p];
    }
}

LayerBase::LayerBase(const LayerKind& kind, const LayerCall& call, Rows rows, int places)
    : kind_(kind),
      call_(call),
      places_(places),
      rows_(std::move(rows)),
      buffers_(kind.layout),
      own_size_(kind.layout, rows_.most_tokens()),
      // Unless the token names an expert twice.
      one_panel_(call.tokens == 1 && rows_.count() && rows_.token.size() == rows_.chunks.size()),
      held_(places, -1) {}

void LayerBase::leave() {
  if (kind_.kernels->finish) kind_.kernels->finish();
}

std::uint8_t* LayerBase::lay_out(Workspace& workspace, int count, std::size_t more) {
  const ExpertLayout& layout = kind_.layout;
  const std::size_t rows = count;
  const std::size_t sums = std::size_t(call_.tokens) * layout.down.strips * kStripOutputs * sizeof(float);
  workspace.reset(rows * buffers_.per_row() + round_up(sums) + places_ * own_size_.all + more +
                  16 * kAlignment);
  inner_ = reinterpret_cast<float*>(workspace.take(rows * buffers_.inner_row));
  std::uint8_t* inner = workspace.take(rows * buffers_.inner_panel_row);
  std::uint8_t* inner_scales = workspace.take(rows * buffers_.scales_inner);
  std::uint8_t* inner_sums = workspace.take(rows * buffers_.scales_inner);
  sum_ = reinterpret_cast<float*>(workspace.take(sums));
  own_ = workspace.take(places_ * own_size_.all);
  for (Chunk& chunk : rows_.chunks) {
    const std::size_t at = chunk.wave_first;
    chunk.inner = panel_at(layout.down, chunk.tokens, inner + at * buffers_.inner_panel_row,
                           inner_scales + at * buffers_.scales_inner,
                           inner_sums + at * buffers_.scales_inner);
  }
  if (one_panel_) gather(rows_.chunks[0], in_of(0));
  return workspace.take(more);
}

Panel LayerBase::in_of(int worker) {
  std::uint8_t* at = own_of(worker) + own_size_.sums;
  std::uint8_t* scales = at + own_size_.inputs;
  return panel_at(kind_.layout.up, 1, at, scales, scales + own_size_.scales);
}

// A chunk's inputs in a worker's own memory: what he gathers is in his cache when he needs it.
Panel LayerBase::own_inputs(int which, int worker) {
  if (one_panel_) return in_of(0);
  Panel own = in_of(worker);
  own.tokens = rows_.chunks[which].tokens;
  if (held_[worker] != which) gather(rows_.chunks[which], own);
  held_[worker] = which;
  return own;
}

void LayerBase::gather(const Chunk& chunk, const Panel& to) {
  const std::size_t row_bytes =
      call_.hidden_stride * (call_.hidden_value == Value::f32 ? sizeof(float) : 2);
  for (int tile = 0; tile * kTileTokens < chunk.tokens; ++tile) {
    const void* rows[kTileTokens];
    const std::int32_t* tokens = rows_.token.data() + chunk.first + tile * kTileTokens;
    for (int t = 0; t < to.tile_tokens(tile); ++t)
      rows[t] = static_cast<const char*>(call_.hidden) + tokens[t] * row_bytes;
    fill(chunk, to, tile, rows, call_.hidden_value, kind_.layout.hidden, kStripOutputs);
  }
}

void LayerBase::fill_inner(const Chunk& chunk, int tile) {
  const void* rows[kTileTokens];
  const int first = tile * kTileTokens, count = chunk.inner.tile_tokens(tile);
  for (int t = 0; t < count; ++t) rows[t] = inner_strip(chunk, 0) + (first + t) * kStripOutputs;
  fill(chunk, chunk.inner, tile, rows, Value::f32, kind_.layout.intermediate,
       std::size_t(chunk.tokens) * kStripOutputs);
}

void LayerBase::fill(const Chunk& chunk, const Panel& panel, int tile, const void* const* rows,
                     Value value, int inputs, std::size_t step) {
  const std::size_t at = std::size_t(tile) * kTileTokens * panel.groups;
  kind_.fill(chunk.tokens)(rows, value, step, panel.tile_tokens(tile), inputs, panel.tiles,
                           const_cast<std::uint8_t*>(panel.tile(tile)),
                           const_cast<float*>(panel.scales) + at,
                           const_cast<std::int32_t*>(panel.sums) + at, panel.groups);
}

// What lies between the products: strip after strip, each [tokens][16].
float* LayerBase::inner_strip(const Chunk& chunk, int strip) {
  return inner_ + chunk.wave_first * (buffers_.inner_row / sizeof(float)) +
         std::size_t(strip) * chunk.tokens * kStripOutputs;
}

Next LayerBase::gate_and_up_at(const Chunk& chunk, int strip) const {
  return {{chunk.block + kind_.layout.gate_strip(strip), chunk.block + kind_.layout.up_strip(strip)}};
}

Next LayerBase::down_at(const Chunk& chunk, int strip) const {
  const std::uint8_t* at = chunk.block + kind_.layout.down_strip(strip);
  return {{at, at + kind_.layout.down.strip_bytes}};
}

void LayerBase::gate_and_up(int which, int strip, int strips, int worker, const Next& next) {
  const Chunk& chunk = rows_.chunks[which];
  const Panel in = own_inputs(which, worker);
  // Many tokens' inputs come in parts, each used by several strips before the next one.
  const int most = chunk.tokens > kManyTokens ? most_strips(kind_.layout.up) / 2 : 1;
  for (int done = 0; done < strips; done += most) {
    const int first = strip + done, count = std::min(most, strips - done);
    const std::uint8_t* at[kMostStrips + 2];
    for (int i = 0; i <= count; ++i) {
      const Next two = done + i < strips ? gate_and_up_at(chunk, first + i) : next;
      at[2 * i] = two.at[0], at[2 * i + 1] = two.at[1];
    }
    float* c = c_of(worker);
    kind_.product(chunk.tokens)(at, 2 * count, kind_.layout.up, in, c, scratch_of(worker));
    for (int i = 0; i < count; ++i) {
      const float* gate = c + std::size_t(2 * i) * chunk.tokens * 16;
      const float* up = gate + std::size_t(chunk.tokens) * 16;
      if (kind_.bf16_inside(chunk.tokens))
        activate_into_panel(chunk, first + i, gate, up);
      else
        kind_.kernels->activate(kind_.activation, gate, up, chunk.tokens,
                                inner_strip(chunk, first + i), kStripOutputs);
    }
  }
}

// A strip is half of what a token has in a tile; without a second half, that is zero.
void LayerBase::activate_into_panel(const Chunk& chunk, int strip, const float* gate, const float* up) {
  const bool alone = strip + 1 == kind_.layout.up.strips && strip % 2 == 0;
  for (int tile = 0; tile * kTileTokens < chunk.tokens; ++tile) {
    const int rows = chunk.inner.tile_tokens(tile), first = tile * kTileTokens * kStripOutputs;
    std::uint8_t* to = const_cast<std::uint8_t*>(chunk.inner.tile(tile)) +
                       std::size_t(strip / 2) * rows * kRowBytes + strip % 2 * (kRowBytes / 2);
    kind_.kernels->activate_bf16(kind_.activation, gate + first, up + first, rows, to, kRowBytes);
    for (int t = 0; alone && t < rows; ++t)
      std::memset(to + t * kRowBytes + kRowBytes / 2, 0, kRowBytes / 2);
  }
}

void LayerBase::down_product(const Chunk& chunk, int strip, int strips, float* c, int worker,
                             const Next& next) {
  const std::uint8_t* at[kMostStrips + 2];
  for (int s = 0; s < strips; ++s) at[s] = down_at(chunk, strip + s).at[0];
  at[strips] = next.at[0], at[strips + 1] = next.at[1];
  kind_.product(chunk.tokens)(at, strips, kind_.layout.down, chunk.inner, c, scratch_of(worker));
}

void LayerBase::add(const Chunk& chunk, int strip, int strips, const float* c) {
  for (int s = 0; s < strips; ++s)
    kind_.kernels->scatter(c + std::size_t(s) * chunk.tokens * 16, chunk.tokens,
                           rows_.token.data() + chunk.first, rows_.weight.data() + chunk.first,
                           sum_strip(strip + s), kStripOutputs);
}

void LayerBase::begin_sums(int strip, int strips) {
  for (int s = strip; s < strip + strips; ++s) {
    const int columns = width(s);
    std::memset(sum_strip(s), 0, std::size_t(call_.tokens) * kStripOutputs * sizeof(float));
    for (int t = 0; call_.add && t < call_.tokens; ++t)
      std::memcpy(sum_strip(s) + t * kStripOutputs, out_at<float>(t, s), columns * sizeof(float));
  }
}

void LayerBase::end_sums(int strip, int strips) {
  for (int t = 0; t < call_.tokens; ++t) {
    for (int s = strip; s < strip + strips; ++s) {
      const float* from = sum_strip(s) + std::size_t(t) * kStripOutputs;
      if (call_.out_value == Value::f32)
        std::memcpy(out_at<float>(t, s), from, width(s) * sizeof(float));
      else
        kind_.kernels->narrow(from, width(s), call_.out_value, out_at<std::uint16_t>(t, s));
    }
  }
}

}  // namespace moesaic
