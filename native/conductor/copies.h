// Copies of experts into slots beside the computation, in order. Every copy has a ticket; when the copy has ended, the
// ticket is written to a flag that both the CPU and the GPU can read. A copy of no bytes is a ticket only.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace moesaic {

class Copies {
 public:
  virtual ~Copies() = default;
  // Called by the conductor's thread before the first copy.
  virtual void attach() {}
  virtual void start(std::uintptr_t to, std::uintptr_t from, std::size_t bytes, std::uint32_t ticket) = 0;
  // The ticket of the last copy that has ended.
  std::uint32_t ended() const { return std::atomic_ref(*flag_).load(std::memory_order_acquire); }

 protected:
  explicit Copies(std::uint32_t* flag) : flag_(flag) {}
  std::uint32_t* flag_;
};

// The driver's asynchronous copies on a stream of PyTorch's context; `flag` is pinned memory, `device_flag` one more in
// the GPU's, for kernels (0: none).
std::unique_ptr<Copies> cuda_copies(std::uintptr_t context, std::uintptr_t stream, std::uint32_t* flag,
                                    std::uintptr_t device_flag);

// Plain memory copies, for a machine without a GPU. Each takes at least `nanoseconds`, on a thread of its own.
std::unique_ptr<Copies> host_copies(std::uint32_t* flag, std::int64_t nanoseconds);

}  // namespace moesaic
