// The brain's buffer of 64-bit words (policies/brain/fields.py) and its compiled functions, as the conductor uses them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moesaic {

using Word = std::int64_t;
using BrainFunction = Word (*)(Word*);

// Numbers of fields that the conductor fills or reads; Python gives them, so that they are written down once.
struct BrainFields {
  int layers, experts, step, layer, tokens, used_ranks, ranks, forecasts, body_forecasts;
  int occupied, num_flights;
  int gpu_busy_ns, cpu_busy_ns, link_busy_ns, transfer_ns;
  int report_start_ns, report_end_ns, report_active, report_hits, report_cpu_ns;
  int entries, lookahead, resting;
  int read_ahead, ahead_ids;
  int forecast_shapes, forecast_steps, forecast_trust, forecast_ids, forecast_scores;
  int expert_ids, ranked_ids, scores, resident, held, flights, plan, background;
  int plan_header, move_words, flight_capacity;
};

struct Brain {
  Word* words = nullptr;
  BrainFields at{};
  BrainFunction decide = nullptr, look_ahead = nullptr, learn = nullptr;
  BrainFunction choose_read_ahead = nullptr;  // experts that the CPU may be given in the next layer
  BrainFunction begin_look_ahead = nullptr, finish_look_ahead = nullptr;  // the same in two stages, forecasts between

  Word& operator[](int field) { return words[field]; }
  Word* ints(int array) { return words + words[array]; }
  double* floats(int array) { return reinterpret_cast<double*>(ints(array)); }
  std::uint8_t* octets(int array) { return reinterpret_cast<std::uint8_t*>(ints(array)); }
};

// A move as plans hold it: `victim_layer` is -1 where nothing is evicted; without `keep` the expert gets no slot.
struct Move {
  Word layer, expert, victim_layer, victim, keep;
};

}  // namespace moesaic
