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
      : shares_(std::move(shares)), left_(shares_.size()), at_(workers) {
    for (std::size_t i = 0; i < shares_.size(); ++i)
      count_ += (shares_[i].strips + shares_[i].at_once - 1) / shares_[i].at_once;
  }

  int count() const { return count_; }

  // To be called `count` times altogether.
  Taken take(int worker) {
    for (int& at = at_[worker].share;; at = moved(at)) {
      if (at < 0) continue;
      const Share& share = shares_[at];
      const int strip = left_[at].next.fetch_add(share.at_once, std::memory_order_relaxed);
      if (strip < share.strips)
        return {share.chunk, strip, std::min(share.at_once, share.strips - strip)};
    }
  }

 private:
  struct alignas(64) Left {
    std::atomic<int> next{0}, workers{0};
  };
  struct alignas(64) Place {
    int share = -1;
  };

  int moved(int from) {
    if (from >= 0) left_[from].workers.fetch_sub(1, std::memory_order_relaxed);
    int best = 0;
    double most = -1;
    for (int i = 0; i < int(shares_.size()); ++i) {
      const int left = shares_[i].strips - left_[i].next.load(std::memory_order_relaxed);
      // A few tokens take as long as one: weights have to come from memory.
      const double work = double(left) * (shares_[i].tokens + 16) /
                          (1 + left_[i].workers.load(std::memory_order_relaxed));
      if (left > 0 && work > most) most = work, best = i;
    }
    left_[best].workers.fetch_add(1, std::memory_order_relaxed);
    return best;
  }

  const std::vector<Share> shares_;
  std::vector<Left> left_;  // of each share
  std::vector<Place> at_;   // where each worker is
  int count_ = 0;
};

}  // namespace moesaic
