// What a worker reads next, as far as it knows: prefetched into its L2 cache while it waits for the others,
// so that memory is not idle while a phase ends and the next one is prepared.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace moesaic {

// Of one worker, which alone uses it.
class alignas(64) ReadAhead {
 public:
  // Forgets what was not prefetched yet. A quarter of the L2 cache may be added.
  void restart() { count_ = at_ = 0, left_ = max_bytes(); }

  // What is read after what was added before. Any address is valid: it is only prefetched.
  void add(const void* from, std::size_t bytes) {
    const std::size_t some = std::min(bytes, left_);
    const auto address = reinterpret_cast<std::uintptr_t>(from);
    if (some == 0) return;
    if (count_ && ranges_[count_ - 1].end == address)
      ranges_[count_ - 1].end += some;
    else if (count_ < kRanges)
      ranges_[count_++] = {address, address + some};
    left_ -= some;
  }
  bool full() const { return left_ == 0; }
  // What was added first and is not prefetched yet; null: nothing.
  const std::uint8_t* first() const {
    return at_ < count_ ? reinterpret_cast<const std::uint8_t*>(ranges_[at_].from) : nullptr;
  }

  // Prefetches a few lines, so few that the caller may look whether it is still to wait; false: none is left.
  bool prefetch_some() {
    for (int line = 0; line < kLinesAtOnce; ++line) {
      while (at_ < count_ && ranges_[at_].from >= ranges_[at_].end) ++at_;
      if (at_ == count_) return false;
      __builtin_prefetch(reinterpret_cast<const void*>(ranges_[at_].from), 0, 2);  // 2: the L2 cache
      ranges_[at_].from += kLineBytes;
    }
    return true;
  }

 private:
  static constexpr int kRanges = 8, kLinesAtOnce = 16;
  static constexpr std::size_t kLineBytes = 64;

  struct Range {
    std::uintptr_t from, end;
  };

  // A quarter of the L2 cache: the rest is for what the worker reads meanwhile.
  static std::size_t max_bytes() {
    static const long cache = sysconf(_SC_LEVEL2_CACHE_SIZE);  // 0 or -1: not known
    return cache > 0 ? std::size_t(cache) / 4 : std::size_t(256) << 10;
  }

  Range ranges_[kRanges] = {};
  int count_ = 0, at_ = 0;
  std::size_t left_ = 0;
};

// All lines of something small that is read soon.
inline void prefetch_all(const void* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(from) + at, 0, 2);
}

}  // namespace moesaic
