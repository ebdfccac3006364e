#include "pool/event.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <thread>

namespace moesaic {
namespace {

// So long a waiting thread keeps its core: about as long as a layer's workers wait for the next layer. After that it
// lets others run in between. Where every core has such a thread, one that wakes up (the engine's, when the GPU has
// ended a step) would otherwise wait until they sleep.
constexpr std::int64_t kKeepsCoreNs = 150'000;

void futex(std::atomic<std::uint32_t>* word, int operation, std::uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(word), operation, value, nullptr, nullptr, 0);
}

}  // namespace

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Event::notify_all() {
  count_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst)) futex(&count_, FUTEX_WAKE_PRIVATE, INT_MAX);
}

void Event::wait_past(std::uint32_t seen, std::int64_t spin_ns) {
  if (count() != seen) return;
  const std::int64_t since = now_ns();
  for (std::int64_t waited = 0; waited < spin_ns; waited = now_ns() - since) {
    if (waited >= kKeepsCoreNs) std::this_thread::yield();
    for (int i = 0; i < 64; ++i) {
      if (count() != seen) return;
      cpu_pause();
    }
  }
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (count_.load(std::memory_order_seq_cst) == seen) futex(&count_, FUTEX_WAIT_PRIVATE, seen);
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace moesaic
