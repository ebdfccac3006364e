#include "pool/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <cstdio>

namespace moesaic {
namespace {

void breathe() { __builtin_ia32_pause(); }

void futex(std::atomic<std::uint32_t>* word, int operation, std::uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(word), operation, value, nullptr, nullptr, 0);
}

bool pin(int core) {
  if (core < 0) return false;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  return pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0;
}

}  // namespace

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Signal::raise() {
  word_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst)) futex(&word_, FUTEX_WAKE_PRIVATE, INT_MAX);
}

void Signal::wait_past(std::uint32_t seen, std::int64_t spin_ns) {
  if (value() != seen) return;
  const std::int64_t until = now_ns() + spin_ns;
  do {
    for (int i = 0; i < 64; ++i) {
      if (value() != seen) return;
      breathe();
    }
  } while (now_ns() < until);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (word_.load(std::memory_order_seq_cst) == seen) futex(&word_, FUTEX_WAIT_PRIVATE, seen);
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

Pool::Pool(const std::vector<int>& cores, std::int64_t spin_ns)
    : spin_ns_(spin_ns), placed_(cores.size()) {
  for (std::size_t i = 0; i < cores.size(); ++i)
    try {
      threads_.emplace_back([this, i, core = cores[i]] { live(int(i) + 1, core); });
    } catch (...) {  // the system has no more threads to give
      close();
      throw;
    }
}

Pool::~Pool() { close(); }

void Pool::close() {
  closing_.store(true, std::memory_order_seq_cst);
  news_.raise();
  for (std::thread& thread : threads_) thread.join();
}

std::vector<int> Pool::pinned() const {
  std::vector<int> which;
  for (std::size_t i = 0; i < placed_.size(); ++i)
    if (placed_[i].load()) which.push_back(int(i));
  return which;
}

std::uint64_t Pool::submit(std::shared_ptr<Work> work) {
  const std::lock_guard<std::mutex> lock(submitting_);
  const std::uint64_t ticket = ++last_;
  Slot& slot = slot_of(ticket);
  if (ticket > kSlots) wait(ticket - kSlots, false);  // the slot is still its
  slot.ticket.store(0, std::memory_order_seq_cst);  // nobody may enter any more
  while (slot.visitors.load(std::memory_order_seq_cst)) breathe();
  slot.work = std::move(work);
  slot.phases = slot.work->phases();
  if (slot.phases > slot.room) {
    slot.parts.reset(new Phase[slot.phases]);
    slot.room = slot.phases;
  }
  slot.phase.store(0, std::memory_order_relaxed);
  for (int i = 0; i < slot.phases; ++i) {
    slot.parts[i].next.store(0, std::memory_order_relaxed);
    slot.parts[i].finished.store(0, std::memory_order_relaxed);
  }
  int first = 0;
  while (first < slot.phases && (slot.parts[first].total = slot.work->items(first)) == 0) ++first;
  slot.phase.store(first, std::memory_order_relaxed);
  if (first == slot.phases) slot.finished.store(ticket, std::memory_order_release);
  slot.ticket.store(ticket, std::memory_order_seq_cst);
  posted_.store(ticket, std::memory_order_seq_cst);
  news_.raise();
  return ticket;
}

bool Pool::done(std::uint64_t ticket) const {
  return slot_of(ticket).finished.load(std::memory_order_acquire) >= ticket;
}

void Pool::wait(std::uint64_t ticket, bool help) {
  // Worker number 0 is whoever helps: one at a time.
  if (threads_.empty()) {
    const std::lock_guard<std::mutex> lock(helping_);
    for (std::uint64_t t = ticket > kSlots ? ticket - kSlots + 1 : 1; t <= ticket; ++t)
      join_in(t, 0);
  } else if (help && helping_.try_lock()) {
    join_in(ticket, 0);
    helping_.unlock();
  }
  Slot& slot = slot_of(ticket);
  while (!done(ticket)) {
    const std::uint32_t seen = slot.progress.value();
    if (done(ticket)) break;
    slot.progress.wait_past(seen, spin_ns_);
  }
}

void Pool::live(int worker, int core) {
  placed_[worker - 1].store(pin(core));
  char name[16];
  std::snprintf(name, sizeof name, "moesaic-%d", worker);
  pthread_setname_np(pthread_self(), name);
  std::uint64_t next = 1;
  while (true) {
    const std::uint32_t seen = news_.value();
    const std::uint64_t posted = posted_.load(std::memory_order_seq_cst);
    if (posted > kSlots && next + kSlots <= posted) next = posted - kSlots + 1;
    while (next <= posted) join_in(next++, worker);
    if (closing_.load(std::memory_order_seq_cst)) return;
    news_.wait_past(seen, spin_ns_);
  }
}

void Pool::join_in(std::uint64_t ticket, int worker) {
  Slot& slot = slot_of(ticket);
  slot.visitors.fetch_add(1, std::memory_order_seq_cst);
  if (slot.ticket.load(std::memory_order_seq_cst) == ticket && !done(ticket)) work_on(slot, worker);
  slot.visitors.fetch_sub(1, std::memory_order_seq_cst);
}

void Pool::work_on(Slot& slot, int worker) {
  bool worked = false;
  int phase = slot.phase.load(std::memory_order_acquire);
  while (phase < slot.phases) {
    Phase& part = slot.parts[phase];
    const int item = part.next.fetch_add(1, std::memory_order_relaxed);
    if (item < part.total) {
      slot.work->run(phase, item, worker);
      worked = true;
      if (part.finished.fetch_add(1, std::memory_order_acq_rel) + 1 < part.total) continue;
      // The last item: whoever ends a phase opens the next one that has items.
      int following = phase + 1;
      while (following < slot.phases &&
             (slot.parts[following].total = slot.work->items(following)) == 0)
        ++following;
      if (following == slot.phases) {
        if (worked) slot.work->leave();
        worked = false;
        slot.finished.store(slot.ticket.load(std::memory_order_relaxed), std::memory_order_release);
      }
      slot.phase.store(following, std::memory_order_release);
      slot.progress.raise();
    } else {
      const std::uint32_t seen = slot.progress.value();
      if (slot.phase.load(std::memory_order_acquire) == phase)
        slot.progress.wait_past(seen, spin_ns_);
    }
    phase = slot.phase.load(std::memory_order_acquire);
  }
  if (worked) slot.work->leave();
}

}  // namespace moesaic
