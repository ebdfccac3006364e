#include "layer/workspace.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace moesaic {

void Workspace::Free::operator()(std::uint8_t* memory) const { std::free(memory); }

void Workspace::reset(std::size_t bytes) {
  used_ = 0;
  if (bytes <= size_) return;
  memory_.reset();
  size_ = round_up(bytes + bytes / 4);
  constexpr std::size_t kHuge = std::size_t(2) << 20;  // huge pages: fewer TLB misses
  const std::size_t page = size_ >= kHuge ? kHuge : 4096, whole = (size_ + page - 1) / page * page;
  memory_.reset(static_cast<std::uint8_t*>(std::aligned_alloc(page, whole)));
  if (memory_ && page == kHuge) madvise(memory_.get(), whole, MADV_HUGEPAGE);
  if (!memory_) {
    size_ = 0;
    throw std::bad_alloc();
  }
}

std::uint8_t* Workspace::take(std::size_t bytes) {
  std::uint8_t* at = memory_.get() + used_;
  used_ += round_up(bytes);
  return at;
}

}  // namespace moesaic
