// What a worker reads next, as far as it knows: prefetched into its L2 cache while it waits for the others,
// so that memory is not idle while a phase ends and the next one is prepared.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace moesaic {

// Of one core; one MiB where the system does not say.
inline std::size_t l2_cache_bytes() {
  static const long cache = sysconf(_SC_LEVEL2_CACHE_SIZE);  // 0 or -1: not known
  return cache > 0 ? std::size_t(cache) : std::size_t(1) << 20;
}

// Of one worker, which alone uses it.
class alignas(64) ReadAhead {
 public:
  // Forgets what was not prefetched yet. A quarter of the L2 cache may be added.
  void restart() { count_ = at_ = 0, left_ = max_bytes(); }

  // What is read after what was added before: rows of so many bytes, `stride` bytes apart, of which several
  // take half of what is left, at most. Any address is valid: it is only prefetched.
  void add(const void* from, std::size_t bytes, std::size_t stride = 0, int rows = 1) {
    if (bytes == 0) return;
    const auto address = reinterpret_cast<std::uintptr_t>(from);
    if (rows > 1) rows = int(std::min(std::size_t(rows), left_ / 2 / bytes));
    const std::size_t all = std::min(bytes * rows, left_);
    if (all == 0) return;
    left_ -= all;
    if (rows == 1) bytes = all;
    Rows* last = count_ ? &rows_[count_ - 1] : nullptr;
    if (rows == 1 && last && last->rows == 1 && last->row + last->bytes == address)
      last->bytes += bytes;
    else if (count_ < kMaxRanges)
      rows_[count_++] = {address, bytes, stride, rows, 0};
  }
  bool full() const { return left_ == 0; }
  // Where what was added last begins; null: nothing was.
  const std::uint8_t* last() const {
    return count_ ? reinterpret_cast<const std::uint8_t*>(rows_[count_ - 1].row) : nullptr;
  }

  // Prefetches a few lines, so few that the caller may look whether it is still to wait; false: none is left.
  bool prefetch_some() {
    for (int line = 0; line < kLinesAtOnce; ++line) {
      if (at_ == count_) return line > 0;
      Rows& rows = rows_[at_];
      __builtin_prefetch(reinterpret_cast<const void*>(rows.row + rows.done), 0, 2);  // 2: the L2 cache
      rows.done += kLineBytes;
      if (rows.done < rows.bytes) continue;
      rows.row += rows.stride, rows.done = 0;
      if (--rows.rows == 0) ++at_;
    }
    return true;
  }

 private:
  static constexpr int kMaxRanges = 12, kLinesAtOnce = 16;
  static constexpr std::size_t kLineBytes = 64;

  struct Rows {
    std::uintptr_t row;
    std::size_t bytes, stride;
    int rows;
    std::size_t done;  // of the first of them
  };

  // A quarter of the L2 cache: the rest is for what the worker reads meanwhile.
  static std::size_t max_bytes() { return l2_cache_bytes() / 4; }

  Rows rows_[kMaxRanges] = {};
  int count_ = 0, at_ = 0;
  std::size_t left_ = 0;
};

// All lines of something small that is read soon.
inline void prefetch_all(const void* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += 64)
    __builtin_prefetch(static_cast<const char*>(from) + at, 0, 2);
}

}  // namespace moesaic
