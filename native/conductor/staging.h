// Slots for experts that one layer uses: copied because its plan demands them, or ahead of it, while the link would
// otherwise idle between two layers. One thread uses it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "conductor/slots.h"

namespace moesaic {

class Staging {
 public:
  // `reserve` of them are for what is copied ahead.
  Staging(int first, int count, int reserve) : first_(first), count_(count), reserve_(reserve) { reset(); }

  // The kernels of all layers before this one have ended: their slots are free. What was copied ahead is this layer's.
  void begin_layer() {
    free_.insert(free_.end(), read_.begin(), read_.end());
    read_.clear();
    for (const Flight& flight : ahead_) read_.push_back(flight.slot);
  }

  // A slot for the layer under way, or kNoSlot.
  int take() {
    if (int(free_.size()) <= reserve_) return kNoSlot;
    read_.push_back(free_.back());
    free_.pop_back();
    return read_.back();
  }

  // The plan is made: what was copied ahead and is not in it is not looked at again.
  void end_plan() { ahead_.clear(); }

  // A slot for the next layer, or kNoSlot.
  int take_ahead() {
    if (free_.empty()) return kNoSlot;
    const int slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void depart_ahead(const Flight& flight) { ahead_.push_back(flight); }

  // Of the layer under way until its plan is made, then of the next one, in the order they end.
  const std::vector<Flight>& ahead() const { return ahead_; }

  const Flight* flight_of(int index) const {
    const auto found = std::find_if(ahead_.begin(), ahead_.end(), [&](const Flight& f) { return f.index == index; });
    return found == ahead_.end() ? nullptr : &*found;
  }

  // Nothing is in use: no kernel runs, no copy is under way.
  void reset() {
    read_.clear(), ahead_.clear();
    free_.resize(std::size_t(count_));
    std::iota(free_.begin(), free_.end(), first_);
  }

 private:
  const int first_, count_, reserve_;
  std::vector<int> free_, read_;
  std::vector<Flight> ahead_;
};

}  // namespace moesaic
