// A layer with few tokens per expert, limited by memory bandwidth. Workers read contiguous ranges of strips
// (with work stealing), prefetch what they read next, and never wait for each other within a phase: the
// worker that finishes the last input of a dependent step does that step. With many rows, adding their
// contributions to the result is a phase of its own, which all workers share.
#include <algorithm>
#include <atomic>
#include <memory>

#include "layer/layer_job.h"
#include "pool/work_stealing.h"

namespace moesaic {
namespace {

constexpr std::size_t kItemBytes = 48 * 1024;  // of weights: amortises the cost of taking an item
constexpr int kItemsPerWorker = 6;             // at least, where there are enough strips
constexpr int kFixedTokens = 64;               // reading a strip takes as long as multiplying so many

// Atomic counters that are used again.
class Counters {
 public:
  void reset(std::size_t count, int value) {
    if (count > size_) counters_.reset(new std::atomic<int>[size_ = count]);
    for (std::size_t i = 0; i < count; ++i) counters_[i].store(value, std::memory_order_relaxed);
  }
  std::atomic<int>& operator[](std::size_t i) { return counters_[i]; }

 private:
  std::unique_ptr<std::atomic<int>[]> counters_;
  std::size_t size_ = 0;
};

class MemoryBoundLayer : public RepeatedLayer {
 public:
  MemoryBoundLayer(const LayerConfig& config, int worker_slots, bool sum_phase, bool alone)
      : RepeatedLayer(config, worker_slots),
        sum_phase_(sum_phase),
        up_(worker_slots),
        down_(worker_slots),
        ahead_(alone ? worker_slots : 0) {}

  void begin(const LayerCall& call, Workspace& workspace) override {
    rows_.assign(call);
    begin_items(call, workspace);
  }
  void begin(const LayerCall& call, RoutedRows& rows, Workspace& workspace) override {
    std::swap(rows_, rows);
    begin_items(call, workspace);
  }

  int phases() const override { return sum_phase_ ? 3 : 2; }
  // The first phases' items only wake the workers: each then takes items from `ranges` until none is left.
  int items(int phase) override { return phase < 2 ? worker_slots_ : divide_up(down_.strips, sum_strips()); }

  void run(int phase, int item, int worker) override {
    if (phase == 2)
      return add_chunks(item * sum_strips(), std::min(sum_strips(), down_.strips - item * sum_strips()));
    MatrixItems& matrix = phase == 0 ? up_ : down_;
    for (int number; (number = matrix.ranges.take(worker)) >= 0;) {
      const Item item = matrix.item(number);
      phase == 0 ? run_gate_and_up(item, worker) : run_down(item, worker);
    }
    if (ahead_.empty()) return;
    ahead_[worker].restart();
    if (phase == 0) read_ahead(worker, ahead_[worker]);
  }

  bool while_waiting(int worker) override { return !ahead_.empty() && ahead_[worker].prefetch_some(); }

  void read_ahead(int worker, ReadAhead& to) const override {
    const int end = down_.ranges.end_of(worker);
    for (int i = down_.ranges.peek(worker); i >= 0 && i < end && !to.full(); ++i) {
      const Item item = down_.item(i);
      to.add(down_strips(rows_.chunks[item.chunk], item.strip).strips[0],
             item.strips * config_.layout.down.strip_bytes);
    }
  }

 private:
  struct Item {
    int chunk, strip, strips;
    int index;  // within its chunk
  };

  // How one matrix of every chunk is cut into items: chunk by chunk, or a part of all of them, then the next part. A
  // worker then has the same part of a chunk whatever the others are, and can read it ahead.
  struct MatrixItems {
    int strips = 0, strips_per_item = 1, items_per_chunk = 0;
    int chunks = 0;  // whose same parts follow each other; 0: chunk by chunk
    WorkStealingRanges ranges;

    explicit MatrixItems(int workers) : ranges(0, workers) {}

    // Items are multiples of `granularity` strips of `bytes` each.
    void begin(int strips_, std::size_t bytes, int granularity, const MemoryBoundLayer& layer) {
      strips = strips_;
      strips_per_item = choose(strips, bytes, granularity, layer);
      items_per_chunk = divide_up(strips, strips_per_item);
      chunks = layer.call_.divides && !layer.sum_phase_ ? int(layer.rows_.chunks.size()) : 0;
      if (layer.sum_phase_)
        ranges.reset(equal_work(layer));
      else
        ranges.reset(items_per_chunk * int(layer.rows_.chunks.size()));
    }

    // Where each worker's range begins, so that all have the same work.
    std::vector<int> equal_work(const MemoryBoundLayer& layer) const {
      const auto work_of = [](const Chunk& chunk) { return double(chunk.tokens + kFixedTokens); };
      double all = 0, done = 0;
      for (const Chunk& chunk : layer.rows_.chunks) all += work_of(chunk);
      std::vector<int> bounds{0};
      for (int c = 0; c < int(layer.rows_.chunks.size()); ++c) {
        const double work = work_of(layer.rows_.chunks[c]);
        for (double due; int(bounds.size()) < layer.worker_slots_ &&
                         (due = all * double(bounds.size()) / layer.worker_slots_) <= done + work;)
          bounds.push_back(c * items_per_chunk + int(items_per_chunk * (due - done) / work));
        done += work;
      }
      bounds.resize(layer.worker_slots_ + 1, items_per_chunk * int(layer.rows_.chunks.size()));
      return bounds;
    }

    static int choose(int strips, std::size_t bytes, int granularity, const MemoryBoundLayer& layer) {
      const int all = strips * int(layer.rows_.chunks.size());
      const int limit = std::min(kMaxStrips, all / (kItemsPerWorker * layer.worker_slots_));
      return std::max(std::min(int(kItemBytes / bytes), limit) / granularity * granularity, granularity);
    }
    Item item(int number) const {
      const int index = chunks ? number / chunks : number % items_per_chunk;
      const int strip = index * strips_per_item;
      return {chunks ? number % chunks : number / items_per_chunk, strip, std::min(strips_per_item, strips - strip),
              index};
    }
  };

  void begin_items(const LayerCall& call, Workspace& workspace) {
    begin_rows(call);
    const ExpertLayout& layout = config_.layout;
    up_.begin(layout.up.strips, 2 * layout.up.strip_bytes, 1, *this);
    down_.begin(layout.down.strips, layout.down.strip_bytes, 2, *this);
    unfinished_up_items_.reset(rows_.chunks.size(), up_.items_per_chunk);
    unfinished_chunks_.reset(down_.items_per_chunk, int(rows_.chunks.size()));
    sum_order_.clear();
    for (Chunk& chunk : rows_.chunks) {
      chunk.first_wave_row = chunk.first_row;
      sum_order_.push_back(int(sum_order_.size()));
    }
    std::sort(sum_order_.begin(), sum_order_.end(), [&](int a, int b) {
      const int first = rows_.chunks[a].expert, second = rows_.chunks[b].expert;
      return first != second ? first < second : a < b;
    });
    const std::size_t bytes = partial_sums_bytes(layout, rows_.count());
    partial_sums_ = reinterpret_cast<float*>(allocate(workspace, rows_.count(), bytes));
  }

  void run_gate_and_up(const Item& item, int worker) {
    const Chunk& chunk = rows_.chunks[item.chunk];
    const PrefetchTarget next = next_up(worker, gate_and_up_strips(chunk, item.strip));
    gate_and_up(item.chunk, item.strip, item.strips, worker, next);
    if (config_.bf16_intermediate(chunk.tokens)) return;
    if (unfinished_up_items_[item.chunk].fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    for (int tile = 0; tile * kTileTokens < chunk.tokens; ++tile) quantise_intermediate(chunk, tile);
  }

  void run_down(const Item& item, int worker) {
    const Chunk& chunk = rows_.chunks[item.chunk];
    const PrefetchTarget next = next_down(worker, down_strips(chunk, item.strip));
    down_product(chunk, item.strip, item.strips, partial_sum(chunk, item.strip), worker, next);
    if (sum_phase_ || unfinished_chunks_[item.index].fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    add_chunks(item.strip, item.strips);
  }

  // The result's strips [strip, strip + strips). Chunks are added in the order of the experts' numbers: the
  // same whatever other tokens are in the call.
  void add_chunks(int strip, int strips) {
    init_sums(strip, strips);
    for (std::size_t i = 0; i < sum_order_.size(); ++i) {
      if (i + 1 < sum_order_.size()) prefetch_partial_sum(rows_.chunks[sum_order_[i + 1]], strip, strips);
      const Chunk& chunk = rows_.chunks[sum_order_[i]];
      add_to_sums(chunk, strip, strips, partial_sum(chunk, strip));
    }
    write_result(strip, strips);
  }

  void prefetch_partial_sum(const Chunk& chunk, int strip, int strips) {
    const float* from = partial_sum(chunk, strip);
    for (int row = 0; row < strips * chunk.tokens; ++row) __builtin_prefetch(from + row * kStripOutputs);
  }

  // Strips of the result that one item of the sum phase adds up: an even number fills lines of bf16.
  int sum_strips() const { return std::clamp(down_.strips / (8 * worker_slots_) * 2, 2, 8); }

  // What this worker reads next, as far as is known; otherwise `fallback`, which is in a cache already.
  PrefetchTarget next_up(int worker, const PrefetchTarget& fallback) const {
    const int number = up_.ranges.peek(worker);
    if (number < 0) return next_down(worker, fallback);
    const Item item = up_.item(number);
    return gate_and_up_strips(rows_.chunks[item.chunk], item.strip);
  }

  PrefetchTarget next_down(int worker, const PrefetchTarget& fallback) const {
    const int number = down_.ranges.peek(worker);
    if (number < 0) return fallback;
    const Item item = down_.item(number);
    return down_strips(rows_.chunks[item.chunk], item.strip);
  }

  // A chunk's contribution to the result: [strip][token][16].
  float* partial_sum(const Chunk& chunk, int strip) {
    return partial_sums_ +
           (std::size_t(chunk.first_row) * down_.strips + std::size_t(strip) * chunk.tokens) * 16;
  }

  const bool sum_phase_;
  MatrixItems up_, down_;
  Counters unfinished_up_items_;  // of each chunk
  Counters unfinished_chunks_;    // of each item index of down
  std::vector<int> sum_order_;    // chunks by expert
  std::vector<ReadAhead> ahead_;  // of each worker; none: not alone
  float* partial_sums_ = nullptr;
};

}  // namespace

std::unique_ptr<RepeatedLayer> repeated_layer(const LayerConfig& config, int worker_slots, bool alone) {
  return std::make_unique<MemoryBoundLayer>(config, worker_slots, false, alone);
}

std::shared_ptr<Job> summing_layer(const LayerConfig& config, const LayerCall& call, RoutedRows rows,
                                   Workspace& workspace, int worker_slots) {
  auto layer = std::make_shared<MemoryBoundLayer>(config, worker_slots, true, true);
  layer->begin(call, rows, workspace);
  return layer;
}

}  // namespace moesaic
