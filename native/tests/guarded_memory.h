// Memory that ends at an inaccessible page: an access beyond the end faults, also one of a matrix tile, which
// sanitizers do not see. The bytes before it are checked for changes.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

class GuardedMemory {
 public:
  // `alignment` of the beginning; up to `alignment - 1` bytes lie between the end and the page.
  GuardedMemory(std::size_t bytes, std::size_t alignment) : bytes_(bytes) {
    const std::size_t page = std::size_t(sysconf(_SC_PAGESIZE));
    const std::size_t pages = (bytes + alignment + kBefore + page - 1) / page;
    size_ = (pages + 1) * page;
    memory_ = static_cast<std::uint8_t*>(
        mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (memory_ == MAP_FAILED) std::abort();
    mprotect(memory_ + pages * page, page, PROT_NONE);
    end_ = memory_ + pages * page;
    at_ = end_ - (bytes + alignment - 1) / alignment * alignment;
    std::memset(memory_, kMark, std::size_t(end_ - memory_));
  }
  ~GuardedMemory() { munmap(memory_, size_); }
  GuardedMemory(const GuardedMemory&) = delete;

  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(at_);
  }

  bool untouched_around() const {
    for (const std::uint8_t* p = at_ - kBefore; p < at_; ++p)
      if (*p != kMark) return false;
    for (const std::uint8_t* p = at_ + bytes_; p < end_; ++p)
      if (*p != kMark) return false;
    return true;
  }

 private:
  static constexpr std::size_t kBefore = 256;
  static constexpr std::uint8_t kMark = 0xa7;

  std::size_t bytes_, size_;
  std::uint8_t *memory_, *end_, *at_;
};
