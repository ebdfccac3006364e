// Who computes which strips of which chunk. A worker stays with a chunk as long as it has strips left,
// because he has its tokens in his cache, and then helps where most is left for each who is there.
#pragma once

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

namespace moesaic {

struct Share {
  int chunk, strips, at_once;  // strips that are taken at a time
  int tokens;
};

struct Taken {
  int chunk, strip, strips;
};

class Shares {
 public:
  Shares(std::vector<Share> shares, int workers)
      : shares_(std::move(shares)), next_(shares_.size()), here_(shares_.size()), at_(workers, -1) {
    for (const Share& share : shares_) count_ += (share.strips + share.at_once - 1) / share.at_once;
  }

  int count() const { return count_; }

  // To be called `count` times altogether.
  Taken take(int worker) {
    for (;; move(worker)) {
      if (at_[worker] < 0) continue;
      const Share& share = shares_[at_[worker]];
      const int strip = next_[at_[worker]].fetch_add(share.at_once, std::memory_order_relaxed);
      if (strip < share.strips)
        return {share.chunk, strip, std::min(share.at_once, share.strips - strip)};
    }
  }

 private:
  void move(int worker) {
    if (at_[worker] >= 0) here_[at_[worker]].fetch_sub(1, std::memory_order_relaxed);
    int best = 0;
    double most = -1;
    for (int i = 0; i < int(shares_.size()); ++i) {
      const int left = shares_[i].strips - next_[i].load(std::memory_order_relaxed);
      // A few tokens take as long as one: weights have to come from memory.
      const double work = double(left) * (shares_[i].tokens + 16) /
                          (1 + here_[i].load(std::memory_order_relaxed));
      if (left > 0 && work > most) most = work, best = i;
    }
    here_[best].fetch_add(1, std::memory_order_relaxed);
    at_[worker] = best;
  }

  const std::vector<Share> shares_;
  std::vector<std::atomic<int>> next_, here_;  // next strip of each; workers who are there
  std::vector<int> at_;                        // where each worker is
  int count_ = 0;
};

}  // namespace moesaic
