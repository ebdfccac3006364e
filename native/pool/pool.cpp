#include "pool/pool.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <cstdio>

namespace moesaic {
namespace {

constexpr std::int64_t kAwakeNs = 100'000'000;  // longer than any phase; ends the spinning if a job hangs

bool pin(int core) {
  if (core < 0 || core >= CPU_SETSIZE) return false;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  return pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0;
}

}  // namespace

Pool::Pool(const std::vector<int>& cores, std::int64_t spin_ns)
    : spin_ns_(spin_ns), process_(getpid()), pinned_(cores.size()) {
  for (std::size_t i = 0; i < cores.size(); ++i) try {
      threads_.emplace_back([this, i, core = cores[i]] { worker_loop(int(i) + 1, core); });
    } catch (...) {  // thread limit of the system
      stop();
      throw;
    }
}

Pool::~Pool() { stop(); }

void Pool::stop() {
  if (getpid() != process_) {  // a fork has no threads to join, only objects that name them
    new std::vector<std::thread>(std::move(threads_));
    return;
  }
  stopping_.store(true, std::memory_order_seq_cst);
  job_submitted_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::vector<int> Pool::pinned() const {
  std::vector<int> which;
  for (std::size_t i = 0; i < pinned_.size(); ++i)
    if (pinned_[i].load()) which.push_back(int(i));
  return which;
}

std::uint64_t Pool::submit(std::shared_ptr<Job> job) {
  const std::lock_guard<std::mutex> lock(submit_mutex_);
  const std::uint64_t ticket = ++last_ticket_;
  Slot& slot = slot_of(ticket);
  if (ticket > kRingSlots) wait(ticket - kRingSlots, false);  // the slot's previous job
  slot.ticket.store(0, std::memory_order_seq_cst);            // no worker may enter any more
  while (slot.active_workers.load(std::memory_order_seq_cst)) cpu_pause();
  slot.job = std::move(job);
  slot.phase_count = slot.job->phases();
  if (slot.phase_count > slot.phase_capacity) {
    slot.phases.reset(new Phase[slot.phase_count]);
    slot.phase_capacity = slot.phase_count;
  }
  slot.phase.store(0, std::memory_order_relaxed);
  for (int i = 0; i < slot.phase_count; ++i) {
    slot.phases[i].next.store(0, std::memory_order_relaxed);
    slot.phases[i].finished.store(0, std::memory_order_relaxed);
  }
  int first = 0;
  while (first < slot.phase_count && (slot.phases[first].total = slot.job->items(first)) == 0) ++first;
  slot.phase.store(first, std::memory_order_relaxed);
  if (first == slot.phase_count) {
    slot.job->finished();
    slot.finished.store(ticket, std::memory_order_release);
  }
  slot.ticket.store(ticket, std::memory_order_seq_cst);
  published_ticket_.store(ticket, std::memory_order_seq_cst);
  job_submitted_.notify_all();
  return ticket;
}

bool Pool::done(std::uint64_t ticket) const {
  return slot_of(ticket).finished.load(std::memory_order_acquire) >= ticket;
}

void Pool::wait(std::uint64_t ticket, bool help) {
  // A helping caller is worker 0: one caller at a time.
  if (threads_.empty()) {
    const std::lock_guard<std::mutex> lock(helper_mutex_);
    for (std::uint64_t t = ticket > kRingSlots ? ticket - kRingSlots + 1 : 1; t <= ticket; ++t) run_job(t, 0);
  } else if (help && helper_mutex_.try_lock()) {
    run_job(ticket, 0);
    helper_mutex_.unlock();
  }
  Slot& slot = slot_of(ticket);
  while (!done(ticket)) {
    const std::uint32_t seen = slot.phase_finished.count();
    if (done(ticket)) break;
    slot.phase_finished.wait_past(seen, spin_ns_);
  }
}

void Pool::worker_loop(int worker, int core) {
  pinned_[worker - 1].store(pin(core));
  char name[16];
  std::snprintf(name, sizeof name, "moesaic-%d", worker);
  pthread_setname_np(pthread_self(), name);
  std::uint64_t next = 1;
  while (true) {
    const std::uint32_t seen = job_submitted_.count();
    const std::uint64_t published = published_ticket_.load(std::memory_order_seq_cst);
    // Older jobs are finished: their slots have been reused.
    if (published > kRingSlots && next + kRingSlots <= published) next = published - kRingSlots + 1;
    while (next <= published) run_job(next++, worker);
    if (stopping_.load(std::memory_order_seq_cst)) return;
    job_submitted_.wait_past(seen, spin_ns_);
  }
}

void Pool::run_job(std::uint64_t ticket, int worker) {
  Slot& slot = slot_of(ticket);
  slot.active_workers.fetch_add(1, std::memory_order_seq_cst);
  if (slot.ticket.load(std::memory_order_seq_cst) == ticket && !done(ticket)) run_phases(slot, worker);
  slot.active_workers.fetch_sub(1, std::memory_order_seq_cst);
}

void Pool::run_phases(Slot& slot, int worker) {
  bool worked = false;
  int phase = slot.phase.load(std::memory_order_acquire);
  while (phase < slot.phase_count) {
    Phase& current = slot.phases[phase];
    const int item = current.next.fetch_add(1, std::memory_order_relaxed);
    if (item < current.total) {
      slot.job->run(phase, item, worker);
      worked = true;
      if (current.finished.fetch_add(1, std::memory_order_acq_rel) + 1 < current.total) continue;
      // That was the phase's last item: open the next phase that has any.
      int following = phase + 1;
      while (following < slot.phase_count && (slot.phases[following].total = slot.job->items(following)) == 0)
        ++following;
      if (following == slot.phase_count) {
        if (worked) slot.job->worker_done();
        worked = false;
        slot.job->finished();
        slot.finished.store(slot.ticket.load(std::memory_order_relaxed), std::memory_order_release);
      }
      slot.phase.store(following, std::memory_order_release);
      slot.phase_finished.notify_all();
    } else if (phase + 1 == slot.phase_count) {
      break;  // nothing follows: others may end it
    } else {
      const std::uint32_t seen = slot.phase_finished.count();
      const std::int64_t spin = slot.job->stays_awake() ? kAwakeNs : spin_ns_;
      while (slot.phase.load(std::memory_order_acquire) == phase && slot.job->while_waiting(worker)) {
      }
      if (slot.phase.load(std::memory_order_acquire) == phase) slot.phase_finished.wait_past(seen, spin);
    }
    phase = slot.phase.load(std::memory_order_acquire);
  }
  if (worked) slot.job->worker_done();
}

}  // namespace moesaic
