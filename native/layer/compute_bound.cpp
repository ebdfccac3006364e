// A layer with many tokens: as fast as matrices are multiplied. Workers stay with an expert's tokens, which
// they keep in their caches, and add results in turns.
#include <sched.h>

#include <algorithm>
#include <atomic>

#include "layer/layer_job.h"
#include "pool/affinity_scheduler.h"

namespace moesaic {
namespace {

constexpr std::size_t kItemBytes = 96 * 1024;  // of weights: what one taking of an item is worth
constexpr int kTogetherStrips = 16;  // fewer are not worth bringing a chunk's inputs into a cache

class ManyTokens : public LayerBase {
 public:
  ManyTokens(const LayerKind& kind, const LayerCall& call, Rows rows, Workspace& workspace, int places)
      : LayerBase(kind, call, std::move(rows), places) {
    cut_into_waves();
    int most = 0;
    for (const Wave& wave : waves_) most = std::max(most, wave.rows);
    lay_out(workspace, most, 0);
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
      case 0: return some_gate_and_up(wave.shares->take(worker), worker);
      case 1: {
        const InnerTile at = inner_tiles_[wave.first_inner + item];
        return fill_inner(rows_.chunks[at.chunk], at.tile);
      }
      default: return down(wave, item, worker);
    }
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

  void cut_into_waves() {
    const ExpertLayout& layout = kind_.layout;
    int chunk = 0;
    do {  // at least one, so that `out` is written even if nobody computes
      Wave wave{};
      wave.first_chunk = chunk;
      wave.first_inner = int(inner_tiles_.size());
      for (; chunk < int(rows_.chunks.size()) && wave.rows < kWaveRows; ++chunk) {
        rows_.chunks[chunk].wave_first = wave.rows;
        wave.rows += rows_.chunks[chunk].tokens;
        ++wave.chunks;
        if (kind_.bf16_inside(rows_.chunks[chunk].tokens)) continue;
        for (int tile = 0; tile * kTileTokens < rows_.chunks[chunk].tokens; ++tile)
          inner_tiles_.push_back({chunk, tile});
      }
      wave.inner_tiles = int(inner_tiles_.size()) - wave.first_inner;
      std::vector<Share> shares;
      for (int c = wave.first_chunk; c < wave.first_chunk + wave.chunks; ++c)
        shares.push_back({c, layout.up.strips, up_strips(rows_.chunks[c].tokens, layout.up.strips * wave.chunks),
                          rows_.chunks[c].tokens});
      wave.shares = std::make_unique<Shares>(std::move(shares), places_);
      waves_.push_back(std::move(wave));
    } while (chunk < int(rows_.chunks.size()));
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
    for (const Chunk& chunk : rows_.chunks) largest = std::max(largest, chunk.tokens);
    const bool many = largest > kManyTokens;
    const int most = most_strips(matrix);
    const int wanted = many ? most : int(kItemBytes / matrix.strip_bytes) + 1;
    const int all = matrix.strips * std::max<int>(1, int(rows_.chunks.size()));
    int strips = std::clamp(all / ((many ? 3 : 6) * places_), 1, std::min(wanted, most));
    const int whole = std::min(matrix.strips / (2 * places_), kMostStrips);
    together_ = many && whole >= kTogetherStrips;
    if (together_) strips = whole;
    down_strips_ = strips > 1 ? strips / 2 * 2 : 1;
  }

  int down_groups() const { return divide_up(kind_.layout.down.strips, down_strips_); }

  void some_gate_and_up(const Taken& item, int worker) {
    const Next next = gate_and_up_at(rows_.chunks[item.chunk], item.strip + item.strips);
    gate_and_up(item.chunk, item.strip, item.strips, worker, next);
  }

  // Some strips, of one chunk or of all. Chunks add to a strip's sums in their order, whoever is
  // faster, so that the same call gives the same bits. Items are taken in that order, too, so that
  // whoever is waited for is at work already.
  void down(const Wave& wave, int item, int worker) {
    const int group = item % down_groups(), which = wave.first_chunk + item / down_groups();
    const int strip = group * down_strips_;
    const int strips = std::min(down_strips_, kind_.layout.down.strips - strip);
    if (rows_.chunks.empty()) {
      begin_sums(strip, strips);
      end_sums(strip, strips);
      return;
    }
    const int end = together_ ? wave.first_chunk + wave.chunks : which + 1;
    for (int chunk = which; chunk < end; ++chunk) {
      // The same strips of the next chunk, or what lies behind these, which somebody may have taken.
      const Next next = chunk + 1 < end ? down_at(rows_.chunks[chunk + 1], strip)
                                        : down_at(rows_.chunks[chunk], strip + strips);
      add_chunk(chunk, group, strip, strips, worker, next);
    }
  }

  void add_chunk(int which, int group, int strip, int strips, int worker, const Next& next) {
    const Chunk& chunk = rows_.chunks[which];
    float* c = c_of(worker);
    down_product(chunk, strip, strips, c, worker, next);
    await_turn(turn_[group], which);
    if (which == 0) begin_sums(strip, strips);
    add(chunk, strip, strips, c);
    if (which + 1 == int(rows_.chunks.size())) end_sums(strip, strips);
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

  std::vector<Wave> waves_;
  std::vector<InnerTile> inner_tiles_;
  int down_strips_ = 1;
  bool together_ = false;  // all chunks of down's strips by one worker
  std::vector<std::atomic<int>> turn_;  // of each group of down's strips: the next chunk to add
};

}  // namespace

std::shared_ptr<Work> many_tokens(const LayerKind& kind, const LayerCall& call, Rows rows,
                                  Workspace& workspace, int places) {
  return std::make_shared<ManyTokens>(kind, call, std::move(rows), workspace, places);
}

}  // namespace moesaic
