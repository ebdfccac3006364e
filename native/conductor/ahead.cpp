// Launches that wait for their step: it is expected, claimed and begun, or the launch goes through without effect.
#include <chrono>

#include "conductor/conductor.h"
#include "conductor/flags.h"

namespace moesaic {

void Conductor::expect(std::int64_t* active) {
  {
    const std::lock_guard lock(mutex_);
    ahead_ = active, claimed_ = expired_ = false;
  }
  wake_.notify_one();
}

bool Conductor::claim() {
  {
    const std::lock_guard lock(mutex_);
    claimed_ = ahead_ != nullptr;
    if (!claimed_) return false;
  }
  wake_.notify_one();  // it has more time from here on
  return true;
}

bool Conductor::let_through() {
  // The caller may have been interrupted in a step, whose table and flags are the thread's until it ends.
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return state_ != State::running; });
  const bool waits = ahead_ != nullptr;
  if (waits) pass_ahead();
  expired_ = false;
  return waits;
}

// Without tokens and experts: it leaves caches as they are.
void Conductor::pass_ahead() {
  *ahead_ = 0;
  ahead_ = nullptr, claimed_ = false;
  release_gpu();
  store(config_.mailbox.start, 1);
}

// Until there is one, or the conductor is stopped. A claimed launch may wait as long as the GPU may take:
// the caller that prepares its step may itself be waiting for the whole GPU.
void Conductor::await_step() {
  std::unique_lock lock(mutex_);
  const auto called = [this] { return state_ == State::running || state_ == State::stopping; };
  while (!called()) {
    if (!ahead_) {
      wake_.wait(lock, [&] { return called() || ahead_; });
      continue;
    }
    const bool kept = claimed_;
    const auto time = std::chrono::nanoseconds(kept ? config_.watchdog_ns : config_.ahead_ns);
    if (wake_.wait_for(lock, time, [&] { return called() || !ahead_ || claimed_ != kept; })) continue;
    pass_ahead();
    expired_ = kept;
  }
  if (state_ == State::stopping && ahead_) pass_ahead();
}

}  // namespace moesaic
