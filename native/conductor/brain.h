// The brain as the conductor uses it: its records and its compiled functions.
#pragma once

#include <stdexcept>

#include "conductor/brain_records.h"

namespace moesaic {

using brain::Word;
using BrainFunction = Word (*)(brain::State*);

struct Brain {
  brain::State* state = nullptr;
  BrainFunction decide = nullptr, look_ahead = nullptr, learn = nullptr;
  BrainFunction choose_read_ahead = nullptr;  // experts that the CPU may be given in the next layer
  BrainFunction begin_look_ahead = nullptr, finish_look_ahead = nullptr;  // the same in two stages, forecasts between

  // Whether state lies as this was compiled for: the number comes first in every layout.
  void check() const {
    if (state->layout != brain::kLayout)
      throw std::runtime_error("the native conductor was built for another layout of the brain's records: install the "
                               "package again, which builds it");
  }
};

// A move as plans hold it: `victim_layer` is -1 where nothing is evicted; without `keep` the expert gets no slot.
struct Move {
  Word layer, expert, victim_layer, victim, keep;
};
static_assert(sizeof(Move) == brain::kMoveWords * sizeof(Word));

}  // namespace moesaic
