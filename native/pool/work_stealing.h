// Who computes which of a row of items. Everybody begins with as many that lie side by side, so that he
// reads memory in one go and knows what he will read next; whoever has none left takes over half of what
// somebody else still has.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace moesaic {

class Ranges {
 public:
  Ranges(int items, int workers) : of_(workers) {
    for (int w = 0; w < workers; ++w)
      of_[w].range.store(packed(part(items, w, workers), part(items, w + 1, workers)),
                         std::memory_order_relaxed);
  }

  // -1: nothing is left.
  int take(int worker) {
    std::atomic<std::uint64_t>& mine = of_[worker].range;
    for (std::uint64_t range = mine.load(std::memory_order_relaxed); begin(range) < end(range);)
      if (mine.compare_exchange_weak(range, packed(begin(range) + 1, end(range)),
                                     std::memory_order_relaxed))
        return begin(range);
    return take_over(mine);
  }

  // What `take` would give now; -1: nothing that is surely his.
  int next(int worker) const {
    const std::uint64_t range = of_[worker].range.load(std::memory_order_relaxed);
    return begin(range) < end(range) ? begin(range) : -1;
  }

 private:
  struct alignas(64) Place {
    std::atomic<std::uint64_t> range{0};  // first item in the lower half, the one after the last above
  };

  static int part(int items, int worker, int workers) {
    return int(std::int64_t(items) * worker / workers);
  }
  static std::uint64_t packed(int first, int last) {
    return std::uint64_t(std::uint32_t(last)) << 32 | std::uint32_t(first);
  }
  static int begin(std::uint64_t range) { return int(std::uint32_t(range)); }
  static int end(std::uint64_t range) { return int(range >> 32); }

  // The first of what was somebody else's; the others are his now. Nobody else changes an empty range.
  int take_over(std::atomic<std::uint64_t>& mine) {
    while (true) {
      Place* most = nullptr;
      std::uint64_t range = 0;
      for (Place& place : of_) {
        const std::uint64_t seen = place.range.load(std::memory_order_relaxed);
        if (end(seen) - begin(seen) > end(range) - begin(range)) most = &place, range = seen;
      }
      if (!most) return -1;
      const int middle = begin(range) + (end(range) - begin(range)) / 2;
      if (most->range.compare_exchange_strong(range, packed(begin(range), middle),
                                              std::memory_order_relaxed)) {
        mine.store(packed(middle + 1, end(range)), std::memory_order_relaxed);
        return middle;
      }
    }
  }

  std::vector<Place> of_;
};

}  // namespace moesaic
