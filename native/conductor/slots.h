// Which expert is in which slot of GPU memory, and what is on its way there. One thread uses it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <stdexcept>
#include <vector>

#include "conductor/brain.h"

namespace moesaic {

constexpr int kNoSlot = -1;

struct Flight {
  int index;  // layer * experts + expert
  int slot;
  std::uint32_t ticket;
  std::int64_t start_ns;
};

class Slots {
 public:
  // Residency is kept in the brain's own buffer, so that it need not be copied there.
  Slots(Brain& brain, int count)
      : brain_(brain),
        experts_(int(brain.state->setup.experts)),
        count_(count),
        slot_of_(std::size_t(brain.state->setup.layers) * experts_, kNoSlot) {
    for (int slot = count; slot-- > 0;) free_.push_back(slot);
  }

  int index(Word layer, Word expert) const { return int(layer * experts_ + expert); }
  int slot_of(int index) const { return slot_of_[index]; }
  const std::deque<Flight>& flights() const { return flights_; }

  // The slot for a move, whose victim leaves it: what is evicted cannot be found from here on.
  int take(const Move& move) {
    if (move.victim_layer >= 0) evict(index(move.victim_layer, move.victim));
    if (free_.empty()) throw std::runtime_error("a plan moves an expert, but no slot is free");
    const int slot = free_.back();
    free_.pop_back();
    brain_.state->inputs.held[move.layer] += 1;
    brain_.state->inputs.occupied += 1;
    return slot;
  }

  // Frees a slot that was taken for a copy which will not arrive.
  void give_up(int index, int slot) {
    free_.push_back(slot);
    brain_.state->inputs.held[index / experts_] -= 1;
    brain_.state->inputs.occupied -= 1;
  }

  void arrive(int index, int slot) {
    slot_of_[index] = slot;
    brain_.state->inputs.resident[index] = 1;
  }

  void depart(const Flight& flight) { flights_.push_back(flight); }

  // Copies with later tickets than this one were never started.
  void drop_after(std::uint32_t ticket) {
    while (!flights_.empty() && std::int32_t(flights_.back().ticket - ticket) > 0) {
      give_up(flights_.back().index, flights_.back().slot);
      flights_.pop_back();
    }
  }

  // Takes note of the copies that have ended.
  void settle(std::uint32_t ended) {
    while (!flights_.empty() && std::int32_t(ended - flights_.front().ticket) >= 0) {
      arrive(flights_.front().index, flights_.front().slot);
      flights_.pop_front();
    }
  }

  // By index, kNoSlot for experts without one.
  const std::vector<int>& all() const { return slot_of_; }

  // Everything as another machine has arranged it; nothing may be on its way.
  void load(const std::vector<int>& slot_of) {
    if (slot_of.size() != slot_of_.size()) throw std::runtime_error("slots of other experts");
    std::vector<char> taken(std::size_t(count_), 0);
    Word* held = brain_.state->inputs.held.data;
    std::fill(held, held + brain_.state->setup.layers, 0);
    brain_.state->inputs.occupied = 0;
    for (std::size_t index = 0; index < slot_of.size(); ++index) {
      const int slot = slot_of[index];
      brain_.state->inputs.resident[index] = slot != kNoSlot;
      if (slot == kNoSlot) continue;
      if (slot < 0 || slot >= count_ || taken[std::size_t(slot)]) throw std::runtime_error("a slot is not free");
      taken[std::size_t(slot)] = 1;
      held[index / std::size_t(experts_)] += 1;
      brain_.state->inputs.occupied += 1;
    }
    slot_of_ = slot_of;
    free_.clear();
    for (int slot = count_; slot-- > 0;)
      if (!taken[std::size_t(slot)]) free_.push_back(slot);
  }

  const Flight* flight_of(int index) const {
    for (const Flight& flight : flights_)
      if (flight.index == index) return &flight;
    return nullptr;
  }

 private:
  void evict(int index) {
    const int slot = slot_of_[index];
    if (slot == kNoSlot) throw std::runtime_error("a plan evicts an expert that has no slot");
    slot_of_[index] = kNoSlot;
    free_.push_back(slot);
    brain_.state->inputs.resident[index] = 0;
    brain_.state->inputs.held[index / experts_] -= 1;
    brain_.state->inputs.occupied -= 1;
  }

  Brain& brain_;
  const int experts_, count_;
  std::vector<int> slot_of_;
  std::vector<int> free_;
  std::deque<Flight> flights_;  // in the order they end
};

}  // namespace moesaic
