// Work stealing over a contiguous sequence of items. Each worker starts with an equal range of adjacent
// items, so that it reads memory sequentially and knows what it reads next; a worker whose range is empty
// steals half of the longest one that is left.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace moesaic {

class WorkStealingRanges {
 public:
  WorkStealingRanges(int items, int workers) : ranges_(workers) { reset(items); }

  // Other items, while no worker takes any.
  void reset(int items) {
    const int workers = int(ranges_.size());
    for (int w = 0; w < workers; ++w)
      ranges_[w].bounds.store(packed(split(items, w, workers), split(items, w + 1, workers)),
                              std::memory_order_relaxed);
  }

  // Items [bounds[w], bounds[w + 1]) for worker w, while no worker takes any.
  void reset(const std::vector<int>& bounds) {
    for (std::size_t w = 0; w < ranges_.size(); ++w)
      ranges_[w].bounds.store(packed(bounds[w], bounds[w + 1]), std::memory_order_relaxed);
  }

  // Where a worker's range begins; the next worker's begins where it ends.
  static int split(int items, int worker, int workers) { return int(std::int64_t(items) * worker / workers); }

  // The end of the range that the worker has now.
  int end_of(int worker) const { return end(ranges_[worker].bounds.load(std::memory_order_relaxed)); }

  // The worker's next item; -1: none is left.
  int take(int worker) {
    std::atomic<std::uint64_t>& own = ranges_[worker].bounds;
    for (std::uint64_t range = own.load(std::memory_order_relaxed); begin(range) < end(range);)
      if (own.compare_exchange_weak(range, packed(begin(range) + 1, end(range)), std::memory_order_relaxed))
        return begin(range);
    return steal(own);
  }

  // What `take` would return now, unless it is stolen before; -1: the worker's own range is empty.
  int peek(int worker) const {
    const std::uint64_t range = ranges_[worker].bounds.load(std::memory_order_relaxed);
    return begin(range) < end(range) ? begin(range) : -1;
  }

 private:
  struct alignas(64) Range {
    std::atomic<std::uint64_t> bounds{0};  // first item in the low half, end in the high half
  };

  static std::uint64_t packed(int first, int last) {
    return std::uint64_t(std::uint32_t(last)) << 32 | std::uint32_t(first);
  }
  static int begin(std::uint64_t range) { return int(std::uint32_t(range)); }
  static int end(std::uint64_t range) { return int(range >> 32); }

  // Takes the second half of the longest range: returns its first item and stores the rest in `own`. A
  // plain store suffices, because thieves never change an empty range.
  int steal(std::atomic<std::uint64_t>& own) {
    while (true) {
      Range* victim = nullptr;
      std::uint64_t range = 0;
      for (Range& candidate : ranges_) {
        const std::uint64_t seen = candidate.bounds.load(std::memory_order_relaxed);
        if (end(seen) - begin(seen) > end(range) - begin(range)) victim = &candidate, range = seen;
      }
      if (!victim) return -1;
      const int middle = begin(range) + (end(range) - begin(range)) / 2;
      if (victim->bounds.compare_exchange_strong(range, packed(begin(range), middle),
                                                 std::memory_order_relaxed)) {
        own.store(packed(middle + 1, end(range)), std::memory_order_relaxed);
        return middle;
      }
    }
  }

  std::vector<Range> ranges_;
};

}  // namespace moesaic
