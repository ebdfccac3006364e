// A layer with many tokens per expert, limited by the matrix units. Workers stay with a chunk, whose tokens
// are in their caches; chunks are added to the sums in a fixed order.
#include <sched.h>

#include <algorithm>
#include <atomic>

#include "layer/layer_job.h"
#include "pool/affinity_scheduler.h"

namespace moesaic {
namespace {

constexpr std::size_t kItemBytes = 96 * 1024;  // of weights: amortises the cost of taking an item
constexpr int kAllChunksStrips = 16;           // fewer are not worth bringing a chunk's inputs into a cache

class ComputeBoundLayer : public LayerJob {
 public:
  ComputeBoundLayer(const LayerConfig& config, const LayerCall& call, RoutedRows rows, Workspace& workspace,
                    int worker_slots)
      : LayerJob(config, worker_slots) {
    rows_ = std::move(rows);
    begin_rows(call);
    cut_into_waves();
    int max_rows = 0;
    for (const Wave& wave : waves_) max_rows = std::max(max_rows, wave.rows);
    allocate(workspace, max_rows, 0);
  }

  int phases() const override { return 3 * int(waves_.size()); }

  int items(int phase) override {
    const Wave& wave = waves_[phase / 3];
    switch (phase % 3) {
      case 0: return wave.up_strips->items();
      case 1: return wave.token_tiles;
      default: return down_groups() * (all_chunks_at_once_ ? 1 : std::max(wave.chunks, 1));
    }
  }

  void run(int phase, int item, int worker) override {
    Wave& wave = waves_[phase / 3];
    switch (phase % 3) {
      case 0: return run_gate_and_up(wave.up_strips->take(worker), worker);
      case 1: {
        const TokenTile at = token_tiles_[wave.first_token_tile + item];
        return quantise_intermediate(rows_.chunks[at.chunk], at.tile);
      }
      default: return run_down(wave, item, worker);
    }
  }

 private:
  struct Wave {
    int first_chunk, chunks, rows = 0;
    int first_token_tile = 0, token_tiles = 0;     // of `token_tiles_`
    std::unique_ptr<AffinityScheduler> up_strips;  // strips of gate and up
  };
  struct TokenTile {  // whose intermediate activations are to be quantised
    int chunk, tile;
  };

  void cut_into_waves() {
    const ExpertLayout& layout = config_.layout;
    int chunk = 0;
    do {  // at least one, so that `out` is written even without experts
      Wave wave{};
      wave.first_chunk = chunk;
      wave.first_token_tile = int(token_tiles_.size());
      for (; chunk < int(rows_.chunks.size()) && wave.rows < kWaveRows; ++chunk) {
        rows_.chunks[chunk].first_wave_row = wave.rows;
        wave.rows += rows_.chunks[chunk].tokens;
        ++wave.chunks;
        if (config_.bf16_intermediate(rows_.chunks[chunk].tokens)) continue;
        for (int tile = 0; tile * kTileTokens < rows_.chunks[chunk].tokens; ++tile)
          token_tiles_.push_back({chunk, tile});
      }
      wave.token_tiles = int(token_tiles_.size()) - wave.first_token_tile;
      std::vector<ChunkStrips> chunks;
      for (int c = wave.first_chunk; c < wave.first_chunk + wave.chunks; ++c) {
        const int tokens = rows_.chunks[c].tokens;
        chunks.push_back({c, layout.up.strips, up_strips(tokens, layout.up.strips * wave.chunks), tokens});
      }
      wave.up_strips = std::make_unique<AffinityScheduler>(std::move(chunks), worker_slots_);
      waves_.push_back(std::move(wave));
    } while (chunk < int(rows_.chunks.size()));
    choose_down_strips();
    next_chunk_to_add_ = std::vector<std::atomic<int>>(down_groups());
  }

  // Strips of gate (and as many of up) per item, of `all` in the wave. Few tokens: enough weights to amortise
  // the cost of taking an item. Many: three items per worker, because a worker that joins another one's
  // chunk has to gather the chunk's tokens, too.
  int up_strips(int tokens, int all) const {
    const MatrixLayout& matrix = config_.layout.up;
    const bool many = tokens > kMemoryBoundTokens;
    const int preferred = many ? 16 : int(kItemBytes / (2 * matrix.strip_bytes)) + 1;
    return std::clamp(all / ((many ? 3 : 6) * worker_slots_), 1, std::min(preferred, many ? 16 : 4));
  }

  // The same for strips of down. With many tokens and few workers, an item is some strips of all chunks, one
  // after the other: their sums stay in the worker's cache.
  void choose_down_strips() {
    const MatrixLayout& matrix = config_.layout.down;
    int largest = 1;
    for (const Chunk& chunk : rows_.chunks) largest = std::max(largest, chunk.tokens);
    const bool many = largest > kMemoryBoundTokens;
    const int limit = max_strips(matrix);
    const int preferred = many ? limit : int(kItemBytes / matrix.strip_bytes) + 1;
    const int all = matrix.strips * std::max<int>(1, int(rows_.chunks.size()));
    int strips = std::clamp(all / ((many ? 3 : 6) * worker_slots_), 1, std::min(preferred, limit));
    const int whole = std::min(matrix.strips / (2 * worker_slots_), kMaxStrips);
    all_chunks_at_once_ = many && whole >= kAllChunksStrips;
    if (all_chunks_at_once_) strips = whole;
    down_strips_per_item_ = strips > 1 ? strips / 2 * 2 : 1;
  }

  int down_groups() const { return divide_up(config_.layout.down.strips, down_strips_per_item_); }

  void run_gate_and_up(const StripRange& item, int worker) {
    const PrefetchTarget next = gate_and_up_strips(rows_.chunks[item.chunk], item.strip + item.strips);
    gate_and_up(item.chunk, item.strip, item.strips, worker, next);
  }

  // Some strips of one chunk or of all. Chunks are added to a strip's sums in a fixed order, independent of
  // timing, so that the same call gives the same bits. Items are taken in that order, too, so that the chunk
  // that is waited for is being computed already.
  void run_down(const Wave& wave, int item, int worker) {
    const int group = item % down_groups(), first = wave.first_chunk + item / down_groups();
    const int strip = group * down_strips_per_item_;
    const int strips = std::min(down_strips_per_item_, config_.layout.down.strips - strip);
    if (rows_.chunks.empty()) {
      init_sums(strip, strips);
      write_result(strip, strips);
      return;
    }
    const int end = all_chunks_at_once_ ? wave.first_chunk + wave.chunks : first + 1;
    for (int chunk = first; chunk < end; ++chunk) {
      // The same strips of the next chunk, or the strips after these (a guess: another worker may have them).
      const PrefetchTarget next = chunk + 1 < end ? down_strips(rows_.chunks[chunk + 1], strip)
                                                  : down_strips(rows_.chunks[chunk], strip + strips);
      add_chunk(chunk, group, strip, strips, worker, next);
    }
  }

  void add_chunk(int index, int group, int strip, int strips, int worker, const PrefetchTarget& next) {
    const Chunk& chunk = rows_.chunks[index];
    float* c = product_sums(worker);
    down_product(chunk, strip, strips, c, worker, next);
    wait_until(next_chunk_to_add_[group], index);
    if (index == 0) init_sums(strip, strips);
    add_to_sums(chunk, strip, strips, c);
    if (index + 1 == int(rows_.chunks.size())) write_result(strip, strips);
    next_chunk_to_add_[group].store(index + 1, std::memory_order_release);
  }

  static void wait_until(const std::atomic<int>& counter, int value) {
    for (int spins = 0; counter.load(std::memory_order_acquire) != value; ++spins) {
      if (spins < 1000)
        cpu_pause();
      else
        sched_yield();
    }
  }

  std::vector<Wave> waves_;
  std::vector<TokenTile> token_tiles_;
  int down_strips_per_item_ = 1;
  bool all_chunks_at_once_ = false;                  // an item of down is some strips of all chunks
  std::vector<std::atomic<int>> next_chunk_to_add_;  // of each group of down's strips
};

}  // namespace

std::shared_ptr<Job> compute_bound_layer(const LayerConfig& config, const LayerCall& call, RoutedRows rows,
                                         Workspace& workspace, int worker_slots) {
  return std::make_shared<ComputeBoundLayer>(config, call, std::move(rows), workspace, worker_slots);
}

}  // namespace moesaic
