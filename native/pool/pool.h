// A pool of worker threads that run one job at a time, together.
//
// Jobs lie in a ring buffer. The worker that finishes the last item of a phase opens the next phase, and
// only workers that hold an item are waited for: a sleeping worker, or one whose core is taken by another
// process, does not delay a job.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "pool/event.h"
#include "pool/job.h"

namespace moesaic {

class Pool {
 public:
  // One thread for each of `cores` (pinned to it; -1: not pinned), which spins for `spin_ns` before it
  // sleeps.
  Pool(const std::vector<int>& cores, std::int64_t spin_ns);
  ~Pool();
  Pool(const Pool&) = delete;

  int workers() const { return int(threads_.size()); }
  // Worker numbers that `Job::run` may see: 0 is a caller that helps while it waits, then the threads.
  int worker_slots() const { return workers() + 1; }
  std::int64_t spin_ns() const { return spin_ns_; }
  std::vector<int> pinned() const;  // indices of the workers that run on the core asked for

  // Thread-safe; jobs begin in the order of submission. A late worker may still touch the job object
  // after the job is done, but none of the memory that the job works on.
  std::uint64_t submit(std::shared_ptr<Job> job);
  void wait(std::uint64_t ticket, bool help);
  bool done(std::uint64_t ticket) const;

 private:
  static constexpr int kRingSlots = 16;

  struct alignas(64) Phase {
    std::atomic<int> next{0};
    int total = 0;  // in one line with `next`, which a worker has when it looks whether there are more
    alignas(64) std::atomic<int> finished{0};
  };
  struct alignas(64) Slot {
    std::atomic<std::uint64_t> ticket{0};  // 0: no job may be entered
    std::atomic<int> active_workers{0};
    std::atomic<int> phase{0};
    // Ticket of the last finished job. Only ever grows, so that a late `done` does not take the slot's
    // next job for its own.
    std::atomic<std::uint64_t> finished{0};
    int phase_count = 0;
    int phase_capacity = 0;  // of `phases`
    std::shared_ptr<Job> job;
    std::unique_ptr<Phase[]> phases;
    Event phase_finished;
  };

  void stop();
  void worker_loop(int worker, int core);
  void run_job(std::uint64_t ticket, int worker);
  void run_phases(Slot& slot, int worker);
  Slot& slot_of(std::uint64_t ticket) { return ring_[ticket % kRingSlots]; }
  const Slot& slot_of(std::uint64_t ticket) const { return ring_[ticket % kRingSlots]; }

  std::int64_t spin_ns_;
  int process_;  // that has the threads
  std::mutex submit_mutex_, helper_mutex_;
  std::uint64_t last_ticket_ = 0;  // guarded by submit_mutex_
  std::atomic<std::uint64_t> published_ticket_{0};
  std::atomic<bool> stopping_{false};
  Event job_submitted_;
  Slot ring_[kRingSlots];
  std::vector<std::atomic<int>> pinned_;
  std::vector<std::thread> threads_;
};

}  // namespace moesaic
