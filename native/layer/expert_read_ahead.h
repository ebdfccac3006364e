// Experts that may be computed next: while there is nothing else to do, each worker brings what it would read of them
// (memory_bound.cpp) into its L2 cache, expert by expert.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "layout/expert_layout.h"
#include "pool/job.h"
#include "pool/read_ahead.h"
#include "pool/work_stealing.h"

namespace moesaic {

// A job of one item per thread of the pool; its caller, worker 0, reads its own part by `read_some`.
class ExpertReadAhead : public Job {
 public:
  // As many of the blocks, from the first on, as fit into three quarters of the workers' caches; at least one.
  ExpertReadAhead(const ExpertLayout& layout, const std::uint8_t* const* blocks, int count, int worker_slots)
      : layout_(layout), worker_slots_(worker_slots), places_(worker_slots) {
    const std::size_t fit = l2_cache_bytes() / 4 * 3 * worker_slots / layout.bytes;
    blocks_.assign(blocks, blocks + std::min(std::size_t(count), std::max<std::size_t>(fit, 1)));
  }

  // Something else is to be done: workers end within a few lines.
  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }

  int phases() const override { return 1; }
  int items(int) override { return worker_slots_ - 1; }
  // Whoever has read its own part already does nothing with another's item: nobody else has a use for that.
  void run(int, int, int worker) override {
    while (read_some(worker)) {
    }
  }

  // A few lines of the worker's part; false: nothing is left to do.
  bool read_some(int worker) {
    constexpr int kLineBytes = 64, kLinesAtOnce = 8;
    Place& place = places_[worker];
    for (int line = 0; line < kLinesAtOnce; ++line, place.at += kLineBytes) {
      if (place.at >= place.end && !next_range(worker)) return false;
      __builtin_prefetch(place.at, 0, 2);  // 2: the L2 cache
    }
    return !cancelled_.load(std::memory_order_relaxed);
  }

 private:
  struct alignas(64) Place {
    const std::uint8_t *at = nullptr, *end = nullptr;
    std::size_t ranges = 0;  // begun: gate and up of a block, then down
  };

  bool next_range(int worker) {
    Place& place = places_[worker];
    if (place.ranges == 2 * blocks_.size()) return false;
    const std::uint8_t* block = blocks_[place.ranges / 2];
    const bool down = place.ranges++ % 2;
    const int strips = down ? layout_.down.strips : layout_.up.strips;
    const int first = WorkStealingRanges::split(strips, worker, worker_slots_);
    const int end = divide_up(strips * (worker + 1), worker_slots_);
    place.at = block + (down ? layout_.down_strip(first) : layout_.gate_strip(first));
    place.end = block + (down ? layout_.down_strip(end) : layout_.gate_strip(end));
    return true;
  }

  const ExpertLayout layout_;
  std::vector<const std::uint8_t*> blocks_;
  const int worker_slots_;
  std::vector<Place> places_;  // by worker, which alone uses it
  std::atomic<bool> cancelled_{false};
};

}  // namespace moesaic
