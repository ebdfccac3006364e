// Memory that a job needs besides its arguments; kept for the next job.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "layout/expert_layout.h"

namespace moesaic {

constexpr std::size_t round_up(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

class Workspace {
 public:
  std::uint8_t* take(std::size_t bytes);  // aligned; until the next `reset`
  void reset(std::size_t bytes);          // frees everything; capacity for so many bytes
  std::size_t capacity() const { return size_; }

 private:
  struct Free {
    void operator()(std::uint8_t* memory) const;
  };
  std::unique_ptr<std::uint8_t, Free> memory_;
  std::size_t size_ = 0, used_ = 0;
};

}  // namespace moesaic
