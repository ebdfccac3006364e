#include "layer.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "layer_memory.h"
#include "shares.h"

namespace moesaic {
namespace {

constexpr std::size_t kItemBytes = 96 * 1024;  // of weights: what one taking of an item is worth
constexpr int kTogetherStrips = 16;  // fewer are not worth bringing a chunk's inputs into a cache

// Some tokens of one expert.
struct Chunk {
  const std::uint8_t* block;
  int tokens;
  int first;       // of its rows, in all rows of the call
  int wave_first;  // the same, within its wave
  Panel inner;
};

class LayerWork : public Work {
 public:
  LayerWork(const LayerKind& kind, const LayerCall& call, Workspace& workspace, int places)
      : kind_(kind), call_(call), buffers_(kind.layout),
        own_size_(kind.layout, call.tokens * call.top_k), places_(places) {
    group();
    cut_into_waves();
    // Unless the token names an expert twice.
    one_panel_ = call.tokens == 1 && !chunks_.empty() && token_.size() == chunks_.size();
    lay_out(workspace);
    if (one_panel_) gather(chunks_[0], in_of(0));  // the same token for every expert
  }

  int phases() const override { return 3 * int(waves_.size()); }

  int items(int phase) override {
    const Wave& wave = waves_[phase / 3];
    switch (phase % 3) {
      case 0: return wave.shares->count();
      case 1: return wave.inner_tiles;
      default: return down_groups() * (together_ ? 1 : std::max(wave.chunks, 1));
    }
  }

  void run(int phase, int item, int worker) override {
    Wave& wave = waves_[phase / 3];
    switch (phase % 3) {
      case 0: return gate_and_up(wave.shares->take(worker), worker);
      case 1: {
        const InnerTile at = inner_tiles_[wave.first_inner + item];
        return fill_inner(chunks_[at.chunk], at.tile);
      }
      default: return down(wave, item, worker);
    }
  }

  void leave() override {
    if (kind_.kernels->finish) kind_.kernels->finish();
  }

 private:
  struct Wave {
    int first_chunk, chunks, rows = 0;
    int first_inner = 0, inner_tiles = 0;
    std::unique_ptr<Shares> shares;  // of gate and up
  };
  struct InnerTile {
    int chunk, tile;
  };

  // Rows sorted by expert, experts with the most tokens first: what is last to start is short.
  void group() {
    std::vector<int> place(call_.experts_total, -1), load(call_.count, 0);
    for (int i = 0; i < call_.count; ++i) place[call_.experts[i]] = i;
    const std::size_t pairs = std::size_t(call_.tokens) * call_.top_k;
    for (std::size_t p = 0; p < pairs; ++p)
      if (const int at = place[call_.ids[p]]; at >= 0) ++load[at];
    std::vector<int> order;
    for (int i = 0; i < call_.count; ++i)
      if (load[i]) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return load[a] > load[b]; });
    std::vector<int> next(call_.count, 0);
    int rows = 0;
    for (const int i : order) {
      next[i] = rows;
      for (int done = 0; done < load[i]; done += kChunkTokens) {
        Chunk chunk{};
        chunk.block = call_.blocks[i];
        chunk.tokens = std::min(kChunkTokens, load[i] - done);
        chunk.first = rows + done;
        chunks_.push_back(chunk);
      }
      rows += load[i];
    }
    token_.resize(rows);
    weight_.resize(rows);
    for (std::size_t p = 0; p < pairs; ++p)
      if (const int at = place[call_.ids[p]]; at >= 0) {
        const int row = next[at]++;
        token_[row] = std::int32_t(p / call_.top_k);
        weight_[row] = call_.weights[p];
      }
  }

  void cut_into_waves() {
    const ExpertLayout& layout = kind_.layout;
    int chunk = 0;
    do {  // at least one, so that `out` is written even if nobody computes
      Wave wave{};
      wave.first_chunk = chunk;
      wave.first_inner = int(inner_tiles_.size());
      for (; chunk < int(chunks_.size()) && wave.rows < kWaveRows; ++chunk) {
        chunks_[chunk].wave_first = wave.rows;
        wave.rows += chunks_[chunk].tokens;
        ++wave.chunks;
        if (kind_.bf16_inside(chunks_[chunk].tokens)) continue;
        for (int tile = 0; tile * kTileTokens < chunks_[chunk].tokens; ++tile)
          inner_tiles_.push_back({chunk, tile});
      }
      wave.inner_tiles = int(inner_tiles_.size()) - wave.first_inner;
      std::vector<Share> shares;
      for (int c = wave.first_chunk; c < wave.first_chunk + wave.chunks; ++c)
        shares.push_back({c, layout.up.strips, up_strips(chunks_[c].tokens, layout.up.strips * wave.chunks),
                          chunks_[c].tokens});
      wave.shares = std::make_unique<Shares>(std::move(shares), places_);
      waves_.push_back(std::move(wave));
    } while (chunk < int(chunks_.size()));
    choose_down_strips();
    turn_ = std::vector<std::atomic<int>>(down_groups());
  }

  // Strips of gate (and as many of up) that one item takes. Few tokens: enough weights that taking
  // an item costs nothing. Many: as much as leaves everybody three items, since whoever takes one
  // that another worker began has to gather its tokens, too.
  int up_strips(int tokens, int all) const {
    const MatrixLayout& matrix = kind_.layout.up;
    const bool many = tokens > kManyTokens;
    const int wanted = many ? 16 : int(kItemBytes / (2 * matrix.strip_bytes)) + 1;
    return std::clamp(all / ((many ? 3 : 6) * places_), 1, std::min(wanted, many ? 16 : 4));
  }

  // The same for strips of down. Where tokens are many and workers few, somebody takes all chunks of
  // his strips, one after the other: their sums stay in his cache.
  void choose_down_strips() {
    const MatrixLayout& matrix = kind_.layout.down;
    int largest = 1;
    for (const Chunk& chunk : chunks_) largest = std::max(largest, chunk.tokens);
    const bool many = largest > kManyTokens;
    const int most = most_strips(matrix);
    const int wanted = many ? most : int(kItemBytes / matrix.strip_bytes) + 1;
    const int all = matrix.strips * std::max<int>(1, int(chunks_.size()));
    int strips = std::clamp(all / ((many ? 3 : 6) * places_), 1, std::min(wanted, most));
    const int whole = std::min(matrix.strips / (2 * places_), kMostStrips);
    together_ = many && whole >= kTogetherStrips;
    if (together_) strips = whole;
    down_strips_ = strips > 1 ? strips / 2 * 2 : 1;
  }

  int down_groups() const { return divide_up(kind_.layout.down.strips, down_strips_); }

  void lay_out(Workspace& workspace) {
    const ExpertLayout& layout = kind_.layout;
    int rows = 0;
    for (const Wave& wave : waves_) rows = std::max(rows, wave.rows);
    const std::size_t sums =
        std::size_t(call_.tokens) * layout.down.strips * kStripOutputs * sizeof(float);
    workspace.reset(std::size_t(rows) * buffers_.per_row() + round_up(sums) +
                    places_ * own_size_.all + 16 * kAlignment);
    inner_ = reinterpret_cast<float*>(workspace.take(rows * buffers_.inner_row));
    inner_panel_ = workspace.take(rows * buffers_.inner_panel_row);
    scales_inner_ = workspace.take(rows * buffers_.scales_inner);
    sums_inner_ = workspace.take(rows * buffers_.scales_inner);
    sum_ = reinterpret_cast<float*>(workspace.take(sums));
    own_ = workspace.take(places_ * own_size_.all);
    held_.assign(places_, -1);
    for (Chunk& chunk : chunks_) {
      const std::size_t at = chunk.wave_first;
      chunk.inner = panel(layout.down, chunk.tokens, inner_panel_ + at * buffers_.inner_panel_row,
                          scales_inner_ + at * buffers_.scales_inner,
                          sums_inner_ + at * buffers_.scales_inner);
    }
  }

  static Panel panel(const MatrixLayout& matrix, int tokens, std::uint8_t* data,
                     std::uint8_t* scales, std::uint8_t* sums) {
    return {data, reinterpret_cast<float*>(scales), reinterpret_cast<std::int32_t*>(sums), tokens,
            matrix.tiles, matrix.groups};
  }

  // A chunk's inputs in a worker's own memory: what he gathers is in his cache when he needs it.
  Panel own_inputs(int which, int worker) {
    if (one_panel_) return in_of(0);
    Panel own = in_of(worker);
    own.tokens = chunks_[which].tokens;
    if (held_[worker] != which) gather(chunks_[which], own);
    held_[worker] = which;
    return own;
  }

  void gather(const Chunk& chunk, const Panel& to) {
    const std::size_t row_bytes =
        call_.hidden_stride * (call_.hidden_value == Value::f32 ? sizeof(float) : 2);
    for (int tile = 0; tile * kTileTokens < chunk.tokens; ++tile) {
      const void* rows[kTileTokens];
      const std::int32_t* tokens = token_.data() + chunk.first + tile * kTileTokens;
      for (int t = 0; t < to.tile_tokens(tile); ++t)
        rows[t] = static_cast<const char*>(call_.hidden) + tokens[t] * row_bytes;
      fill(chunk, to, tile, rows, call_.hidden_value, kind_.layout.hidden, kStripOutputs);
    }
  }

  void fill_inner(const Chunk& chunk, int tile) {
    const void* rows[kTileTokens];
    const int first = tile * kTileTokens, count = chunk.inner.tile_tokens(tile);
    for (int t = 0; t < count; ++t) rows[t] = inner_strip(chunk, 0) + (first + t) * kStripOutputs;
    fill(chunk, chunk.inner, tile, rows, Value::f32, kind_.layout.intermediate,
         std::size_t(chunk.tokens) * kStripOutputs);
  }

  void fill(const Chunk& chunk, const Panel& panel, int tile, const void* const* rows, Value value,
            int inputs, std::size_t step) {
    const std::size_t at = std::size_t(tile) * kTileTokens * panel.groups;
    kind_.fill(chunk.tokens)(rows, value, step, panel.tile_tokens(tile), inputs, panel.tiles,
                             const_cast<std::uint8_t*>(panel.tile(tile)),
                             const_cast<float*>(panel.scales) + at,
                             const_cast<std::int32_t*>(panel.sums) + at, panel.groups);
  }

  // What lies between the products: strip after strip, each [tokens][16].
  float* inner_strip(const Chunk& chunk, int strip) {
    return inner_ + chunk.wave_first * (buffers_.inner_row / sizeof(float)) +
           std::size_t(strip) * chunk.tokens * kStripOutputs;
  }

  float* sum_strip(int strip) { return sum_ + std::size_t(strip) * call_.tokens * kStripOutputs; }

  void gate_and_up(const Taken& item, int worker) {
    const Chunk& chunk = chunks_[item.chunk];
    const Panel in = own_inputs(item.chunk, worker);
    // Many tokens' inputs come in parts, each used by several strips before the next one.
    const int most = chunk.tokens > kManyTokens ? most_strips(kind_.layout.up) / 2 : 1;
    for (int done = 0; done < item.strips; done += most) {
      const int first = item.strip + done, count = std::min(most, item.strips - done);
      const std::uint8_t* strips[kMostStrips];
      for (int i = 0; i < count; ++i) {
        strips[2 * i] = chunk.block + kind_.layout.gate_strip(first + i);
        strips[2 * i + 1] = chunk.block + kind_.layout.up_strip(first + i);
      }
      float* c = c_of(worker);
      kind_.product(chunk.tokens)(strips, 2 * count, kind_.layout.up, in, c,
                                  scratch_of(worker));
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
  void activate_into_panel(const Chunk& chunk, int strip, const float* gate, const float* up) {
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

  // Some strips, of one chunk or of all. Chunks add to a strip's sums in their order, whoever is
  // faster, so that the same call gives the same bits. Items are taken in that order, too, so that
  // whoever is waited for is at work already.
  void down(const Wave& wave, int item, int worker) {
    const int group = item % down_groups(), which = wave.first_chunk + item / down_groups();
    const int strip = group * down_strips_;
    const int strips = std::min(down_strips_, kind_.layout.down.strips - strip);
    if (chunks_.empty()) {
      begin_sums(strip, strips);
      end_sums(strip, strips);
      return;
    }
    const int end = together_ ? wave.first_chunk + wave.chunks : which + 1;
    for (int chunk = which; chunk < end; ++chunk) add_chunk(chunk, group, strip, strips, worker);
  }

  void add_chunk(int which, int group, int strip, int strips, int worker) {
    const Chunk& chunk = chunks_[which];
    const std::uint8_t* at[kMostStrips];
    for (int s = 0; s < strips; ++s) at[s] = chunk.block + kind_.layout.down_strip(strip + s);
    float* c = c_of(worker);
    kind_.product(chunk.tokens)(at, strips, kind_.layout.down, chunk.inner, c, scratch_of(worker));
    await_turn(turn_[group], which);
    if (which == 0) begin_sums(strip, strips);
    for (int s = 0; s < strips; ++s)
      kind_.kernels->scatter(c + std::size_t(s) * chunk.tokens * 16, chunk.tokens,
                             token_.data() + chunk.first, weight_.data() + chunk.first,
                             sum_strip(strip + s), kStripOutputs);
    if (which + 1 == int(chunks_.size())) end_sums(strip, strips);
    turn_[group].store(which + 1, std::memory_order_release);
  }

  static void await_turn(const std::atomic<int>& turn, int mine) {
    for (int looks = 0; turn.load(std::memory_order_acquire) != mine; ++looks) {
      if (looks < 1000)
        __builtin_ia32_pause();
      else
        sched_yield();
    }
  }

  void begin_sums(int strip, int strips) {
    for (int s = strip; s < strip + strips; ++s) {
      const int columns = width(s);
      std::memset(sum_strip(s), 0, std::size_t(call_.tokens) * kStripOutputs * sizeof(float));
      for (int t = 0; call_.add && t < call_.tokens; ++t)
        std::memcpy(sum_strip(s) + t * kStripOutputs, out_at<float>(t, s), columns * sizeof(float));
    }
  }

  void end_sums(int strip, int strips) {
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

  int width(int strip) const {
    return std::min(kStripOutputs, kind_.layout.hidden - strip * kStripOutputs);
  }

  template <class T>
  T* out_at(int token, int strip) const {
    return static_cast<T*>(call_.out) + std::size_t(token) * kind_.layout.hidden + strip * kStripOutputs;
  }

  // A worker's own memory: sums of a product, a chunk's inputs, what kernels unpack.
  std::uint8_t* own_of(int worker) { return own_ + worker * own_size_.all; }
  float* c_of(int worker) { return reinterpret_cast<float*>(own_of(worker)); }
  std::uint8_t* scratch_of(int worker) { return own_of(worker + 1) - kScratchBytes; }
  Panel in_of(int worker) {
    std::uint8_t* at = own_of(worker) + own_size_.sums;
    std::uint8_t* scales = at + own_size_.inputs;
    return panel(kind_.layout.up, 1, at, scales, scales + own_size_.scales);
  }

  const LayerKind kind_;
  const LayerCall call_;
  const Buffers buffers_;
  const Own own_size_;
  const int places_;
  bool one_panel_ = false;
  std::vector<Chunk> chunks_;
  std::vector<std::int32_t> token_;  // of every row
  std::vector<float> weight_;
  std::vector<Wave> waves_;
  std::vector<InnerTile> inner_tiles_;
  int down_strips_ = 1;
  bool together_ = false;  // all chunks of down's strips by one worker
  std::vector<std::atomic<int>> turn_;  // of each group of down's strips: the next chunk to add
  std::vector<int> held_;               // whose inputs each worker has gathered
  std::uint8_t *inner_panel_ = nullptr, *own_ = nullptr;
  std::uint8_t *scales_inner_ = nullptr, *sums_inner_ = nullptr;
  float *inner_ = nullptr, *sum_ = nullptr;
};

}  // namespace

std::size_t workspace_bytes(const LayerKind& kind, int tokens, int top_k, int places) {
  const Buffers buffers(kind.layout);
  const std::size_t rows = rows_at_once(tokens * top_k);
  const std::size_t sums = std::size_t(tokens) * kind.layout.down.strips * kStripOutputs * 4;
  const std::size_t bytes = rows * buffers.per_row() + sums + places * Own(kind.layout, tokens * top_k).all;
  return bytes + bytes / 4 + 32 * kAlignment;
}

std::shared_ptr<Work> layer_work(const LayerKind& kind, const LayerCall& call, Workspace& workspace,
                                 int places) {
  return std::make_shared<LayerWork>(kind, call, workspace, places);
}

}  // namespace moesaic
