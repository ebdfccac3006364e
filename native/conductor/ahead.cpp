// Launches that wait for their step: it is expected, claimed and begun, or the launch goes through without effect.
#include <chrono>

#include "conductor/conductor.h"
#include "conductor/flags.h"

namespace moesaic {

void Conductor::expect(std::int64_t* active) {
  {
    const std::lock_guard lock(mutex_);
    ahead_ = active, claimed_ = false;
  }
  wake_.notify_one();
}

bool Conductor::claim() {
  const std::lock_guard lock(mutex_);
  return claimed_ = ahead_ != nullptr;
}

bool Conductor::let_through() {
  // The caller may have been interrupted in a step, whose table and flags are the thread's until it ends.
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return state_ != State::running; });
  const bool waits = ahead_ != nullptr;
  if (waits) pass_ahead();
  return waits;
}

// Without tokens and experts: it leaves caches as they are.
void Conductor::pass_ahead() {
  *ahead_ = 0;
  ahead_ = nullptr, claimed_ = false;
  release_gpu();
  store(config_.mailbox.start, 1);
}

// Until there is one, or the conductor is stopped.
void Conductor::await_step() {
  std::unique_lock lock(mutex_);
  const auto called = [this] { return state_ == State::running || state_ == State::stopping; };
  const auto unclaimed = [this] { return ahead_ && !claimed_; };
  while (!called()) {
    if (!unclaimed())
      wake_.wait(lock, [&] { return called() || unclaimed(); });
    else if (!wake_.wait_for(lock, std::chrono::nanoseconds(config_.ahead_ns), called) && unclaimed())
      pass_ahead();
  }
  if (state_ == State::stopping && ahead_) pass_ahead();
}

}  // namespace moesaic
