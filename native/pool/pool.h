// Workers that compute one job at a time, together. A job is a row of phases, a phase a number of
// items that anybody may take; the next phase begins when all items of the last are done. Nobody
// waits for a worker that has taken nothing: one who sleeps, or whose core another process holds,
// delays nothing but himself.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace moesaic {

// A place where threads wait for each other: briefly awake, then asleep.
class Signal {
 public:
  std::uint32_t value() const { return word_.load(std::memory_order_acquire); }
  void raise();  // wakes everybody who waits for `value` to change
  void wait_past(std::uint32_t seen, std::int64_t spin_ns);

 private:
  std::atomic<std::uint32_t> word_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

class Work {
 public:
  virtual ~Work() = default;
  virtual int phases() const = 0;
  virtual int items(int phase) = 0;  // asked when the phase begins
  virtual void run(int phase, int item, int worker) = 0;
  virtual void leave() {}  // a worker has no more to do here
};

class Pool {
 public:
  // One thread on each of `cores` (-1: anywhere), awake for `spin_ns` after the last work.
  Pool(const std::vector<int>& cores, std::int64_t spin_ns);
  ~Pool();
  Pool(const Pool&) = delete;

  int workers() const { return int(threads_.size()); }
  int places() const { return workers() + 1; }  // worker numbers that `Work::run` may see
  std::int64_t spin_ns() const { return spin_ns_; }
  std::vector<int> pinned() const;  // which workers got the core they asked for

  // Any thread may submit; jobs begin in order. A worker who comes late may look at `work` after
  // it is done, but at nothing that it works on.
  std::uint64_t submit(std::shared_ptr<Work> work);
  void wait(std::uint64_t ticket, bool help);
  bool done(std::uint64_t ticket) const;

 private:
  static constexpr int kSlots = 16;

  struct alignas(64) Phase {
    std::atomic<int> next{0};
    alignas(64) std::atomic<int> finished{0};
    int total = 0;
  };
  struct alignas(64) Slot {
    std::atomic<std::uint64_t> ticket{0};  // 0: nobody's
    std::atomic<int> visitors{0};
    std::atomic<int> phase{0};
    std::atomic<std::uint64_t> finished{0};  // ticket: only ever grows, so that nobody who asks
                                             // late takes the next job for his own
    int phases = 0;
    int room = 0;  // phases that `parts` has room for
    std::shared_ptr<Work> work;
    std::unique_ptr<Phase[]> parts;
    Signal progress;  // raised when a phase ends
  };

  void close();
  void live(int worker, int core);
  void join_in(std::uint64_t ticket, int worker);
  void work_on(Slot& slot, int worker);
  Slot& slot_of(std::uint64_t ticket) { return slots_[ticket % kSlots]; }
  const Slot& slot_of(std::uint64_t ticket) const { return slots_[ticket % kSlots]; }

  std::int64_t spin_ns_;
  std::mutex submitting_, helping_;
  std::uint64_t last_ = 0;  // ticket; guarded by submitting_
  std::atomic<std::uint64_t> posted_{0};
  std::atomic<bool> closing_{false};
  Signal news_;
  Slot slots_[kSlots];
  std::vector<std::atomic<int>> placed_;
  std::vector<std::thread> threads_;
};

std::int64_t now_ns();

}  // namespace moesaic
