// What a pool runs: a sequence of phases, each a number of independent items. An item may be run by any
// worker; a phase begins when all items of the one before are finished.
#pragma once

namespace moesaic {

class Job {
 public:
  virtual ~Job() = default;
  virtual int phases() const = 0;
  virtual int items(int phase) = 0;  // called once, when the phase begins
  virtual void run(int phase, int item, int worker) = 0;
  virtual void finished() {}  // called once, by the worker that ran the last item, before waiting threads are woken
  // Whether workers stay awake between its phases, however long they wait: for many short phases.
  virtual bool stays_awake() const { return false; }
  // Called again and again by a worker that waits for the next phase: what it reads then may be prefetched,
  // a few lines a call; false: there is nothing more. Phase and job may end meanwhile: it may use only what
  // belongs to the worker.
  virtual bool while_waiting(int /*worker*/) { return false; }
  virtual void worker_done() {}  // called by each worker that ran items, after its last one
};

}  // namespace moesaic
