// An event counter on which threads wait for each other: they spin for a while, then sleep (futex).
#pragma once

#include <atomic>
#include <cstdint>

namespace moesaic {

class Event {
 public:
  std::uint32_t count() const { return count_.load(std::memory_order_acquire); }
  void notify_all();  // increments the count and wakes all waiting threads
  void wait_past(std::uint32_t seen, std::int64_t spin_ns);  // until `count` is no longer `seen`

 private:
  std::atomic<std::uint32_t> count_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

std::int64_t now_ns();
inline void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");  // as long as x86's pause; yield is a no-op on most cores
#endif
}

}  // namespace moesaic
