// Flags in memory that the conductor shares with the GPU.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace moesaic {

constexpr std::uint32_t kReleased = 0x7fffffff;  // above every layer's number: no kernel waits any more

inline std::uint32_t load(std::uint32_t* flag) { return std::atomic_ref(*flag).load(std::memory_order_acquire); }
inline void store(std::uint32_t* flag, std::uint32_t value) {
  std::atomic_ref(*flag).store(value, std::memory_order_release);
}

// Between two looks at a flag.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace moesaic
