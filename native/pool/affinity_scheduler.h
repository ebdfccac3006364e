// Which worker computes which strips of which chunk, with cache affinity: a worker stays with a chunk
// while it has strips left, because the chunk's tokens are in its cache, and then moves to the chunk with
// the most remaining work per worker.
#pragma once

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

namespace moesaic {

struct ChunkStrips {
  int chunk, strips;
  int strips_per_item;
  int tokens;
};

struct StripRange {
  int chunk, strip, strips;
};

class AffinityScheduler {
 public:
  AffinityScheduler(std::vector<ChunkStrips> chunks, int workers)
      : chunks_(std::move(chunks)), progress_(chunks_.size()), current_(workers) {
    for (const ChunkStrips& chunk : chunks_)
      items_ += (chunk.strips + chunk.strips_per_item - 1) / chunk.strips_per_item;
  }

  int items() const { return items_; }

  // To be called `items` times by all workers together.
  StripRange take(int worker) {
    for (int& at = current_[worker].chunk;; at = next_chunk(at)) {
      if (at < 0) continue;
      const ChunkStrips& chunk = chunks_[at];
      const int strip = progress_[at].next_strip.fetch_add(chunk.strips_per_item, std::memory_order_relaxed);
      if (strip < chunk.strips)
        return {chunk.chunk, strip, std::min(chunk.strips_per_item, chunk.strips - strip)};
    }
  }

 private:
  struct alignas(64) Progress {
    std::atomic<int> next_strip{0}, workers{0};
  };
  struct alignas(64) Current {
    int chunk = -1;  // index into `chunks_`
  };

  int next_chunk(int from) {
    if (from >= 0) progress_[from].workers.fetch_sub(1, std::memory_order_relaxed);
    int best = 0;
    double largest = -1;
    for (int i = 0; i < int(chunks_.size()); ++i) {
      const int left = chunks_[i].strips - progress_[i].next_strip.load(std::memory_order_relaxed);
      // + 16: a few tokens take as long as one, because the weights have to be read from memory.
      const double work = double(left) * (chunks_[i].tokens + 16) /
                          (1 + progress_[i].workers.load(std::memory_order_relaxed));
      if (left > 0 && work > largest) largest = work, best = i;
    }
    progress_[best].workers.fetch_add(1, std::memory_order_relaxed);
    return best;
  }

  const std::vector<ChunkStrips> chunks_;
  std::vector<Progress> progress_;  // of each chunk
  std::vector<Current> current_;    // of each worker
  int items_ = 0;
};

}  // namespace moesaic
