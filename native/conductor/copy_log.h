// When copies to the GPU were submitted and ended, as the conductor sees it: for a timeline. One thread uses it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "conductor/clock.h"

namespace moesaic {

// In nanoseconds of the steady clock. A copy ended between `unseen`, when it was last found under way, and `seen`.
struct CopyTimes {
  int index;       // layer * experts + expert
  int background;  // 1: not demanded yet
  std::int64_t submitted, unseen, seen;
};

class CopyLog {
 public:
  void depart(std::uint32_t ticket, int index, bool background) {
    under_way_.push_back({ticket, {index, background, now(), 0, 0}});
  }

  // `ended`: the ticket of the last copy that has ended. They end in order.
  void watch(std::uint32_t ended) {
    if (under_way_.empty()) return;
    const std::int64_t time = now();
    for (; !under_way_.empty() && std::int32_t(ended - under_way_.front().ticket) >= 0; under_way_.pop_front()) {
      ended_.push_back(under_way_.front().times);
      ended_.back().unseen = std::max(ended_.back().submitted, watched_);
      ended_.back().seen = time;
      if (ended_.size() > kKept) ended_.pop_front();
    }
    watched_ = time;
  }

  // Those that have ended since this was called last, or the last of them.
  std::vector<CopyTimes> take() {
    std::vector<CopyTimes> found(ended_.begin(), ended_.end());
    ended_.clear();
    return found;
  }

 private:
  struct UnderWay {
    std::uint32_t ticket;
    CopyTimes times;
  };
  static constexpr std::size_t kKept = 4096;  // where they are not taken

  std::deque<UnderWay> under_way_;
  std::deque<CopyTimes> ended_;
  std::int64_t watched_ = 0;  // when the copies were looked at last
};

}  // namespace moesaic
