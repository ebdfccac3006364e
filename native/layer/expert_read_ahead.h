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
  // As much of the blocks, from the first one's beginning on, as fits into three quarters of a worker's cache.
  ExpertReadAhead(const ExpertLayout& layout, const std::uint8_t* const* blocks, int count, int worker_slots)
      : layout_(layout), blocks_(blocks, blocks + count), worker_slots_(worker_slots), places_(worker_slots) {}

  // A worker's part of a block: bytes of gate and up, or of down. As the layer divides them, which has items of one
  // strip of gate and up, and of two of down, or more.
  struct Part {
    std::size_t begin, end;
  };
  static Part part(const ExpertLayout& layout, bool down, int worker, int worker_slots) {
    const int strips = down ? layout.down.strips : layout.up.strips, together = down ? 2 : 1;
    const int items = divide_up(strips, together);
    const int first = WorkStealingRanges::split(items, worker, worker_slots) * together;
    const int end = std::min(divide_up(items * (worker + 1), worker_slots) * together, strips);
    return down ? Part{layout.down_strip(first), layout.down_strip(end)}
                : Part{layout.gate_strip(first), layout.gate_strip(end)};
  }

  // Something else is to be done: workers end within a few lines.
  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }

  int phases() const override { return 1; }
  int items(int) override { return worker_slots_ - 1; }
  // A worker that has read its own part does nothing with another's item: no other worker has a use for that.
  void run(int, int, int worker) override {
    while (read_some(worker)) {
    }
  }

  // A few lines of the worker's part; false: nothing is left to do.
  bool read_some(int worker) {
    constexpr int kLineBytes = 64, kLinesAtOnce = 8;
    if (cancelled_.load(std::memory_order_relaxed)) return false;
    Place& place = places_[worker];
    for (int line = 0; line < kLinesAtOnce; ++line, place.at += kLineBytes) {
      while (place.at >= place.end)
        if (!next_range(worker)) return false;
      __builtin_prefetch(place.at, 0, 2);  // 2: the L2 cache
    }
    return true;
  }

 private:
  struct alignas(64) Place {
    const std::uint8_t *at = nullptr, *end = nullptr;
    std::size_t ranges = 0;  // begun: gate and up of a block, then down
    std::size_t left = l2_cache_bytes() / 4 * 3;
  };

  bool next_range(int worker) {
    Place& place = places_[worker];
    if (place.ranges == 2 * blocks_.size() || place.left == 0) return false;
    const std::uint8_t* block = blocks_[place.ranges / 2];
    const Part mine = part(layout_, place.ranges++ % 2, worker, worker_slots_);
    const std::size_t bytes = std::min(mine.end - mine.begin, place.left);
    place.at = block + mine.begin, place.end = place.at + bytes, place.left -= bytes;
    return true;
  }

  const ExpertLayout layout_;
  const std::vector<const std::uint8_t*> blocks_;
  const int worker_slots_;
  std::vector<Place> places_;  // by worker, which alone uses it
  std::atomic<bool> cancelled_{false};
};

}  // namespace moesaic
