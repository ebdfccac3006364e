// The brain's records, which its compiled functions and the conductor share. Made from
// src/moesaic/policies/records.py by `python -m moesaic.policies.brain.c_header`: edit that.
#pragma once

#include <cstdint>

namespace moesaic::brain {

using Word = std::int64_t;

// Elements in order, the last dimension's beside each other.
template <class T, int kDims>
struct Array {
  T* data;
  Word shape[kDims];

  T& operator[](Word i) const { return data[i]; }
  // The first element of a part, where the first dimension says which.
  T* part(Word i) const {
    for (int d = 1; d < kDims; ++d) i *= shape[d];
    return data + i;
  }
};

constexpr Word kLayout = 6033408316803175378;  // a hash of what follows, which stands in every State, too

constexpr Word kFlightCapacity = 64;
constexpr Word kMoveWords = 5;
constexpr Word kPlanHeader = 4;

struct Setup {
  Word layers;
  Word experts;
  Word top_k;
  Word slots;
  Word lookahead;
  Word global_pool;
  Word promote;
  Word fixed_cache;
  Word admits_always;
  Word values_change;
  Word cache_horizon;
  Word predicts;
  Word oracle;
  Word read_ahead;
  Word schedule_rule;
  Word expected_rule;
  Word fills_timelines;
  Word cache_rule;
  Word prefetch_rule;
  Array<Word, 1> quota;
};
static_assert(sizeof(Setup) == 21 * sizeof(Word));

struct Costs {
  Word cpu_first_ns;
  Word cpu_slowed_by;
  Word transfer_ns;
  Word decision_ns;
  Word believed_first_ns;
  Word cpu_slope;
  Word cpu_seen;
  Word cpu_class;
  Array<Word, 2> tables;
  Array<Word, 1> believed_cpu;
  Array<double, 1> cpu_means;
};
static_assert(sizeof(Costs) == 15 * sizeof(Word));

struct Inputs {
  Word step;
  Word layer;
  Word tokens;
  Word used_ranks;
  Word ranks;
  Word occupied;
  Word num_flights;
  Word gpu_busy_ns;
  Word cpu_busy_ns;
  Word link_busy_ns;
  Array<Word, 1> expert_ids;
  Array<Word, 1> ranked_ids;
  Array<double, 1> scores;
  Array<std::uint8_t, 2> resident;
  Array<Word, 1> held;
  Array<Word, 2> flights;
};
static_assert(sizeof(Inputs) == 24 * sizeof(Word));

struct Forecasts {
  Word count;
  Word from_body;
  Array<Word, 2> shapes;
  Array<Word, 1> steps;
  Array<double, 1> trust;
  Array<Word, 2> ids;
  Array<double, 2> scores;
};
static_assert(sizeof(Forecasts) == 15 * sizeof(Word));

struct Report {
  Word start_ns;
  Word end_ns;
  Word active;
  Word hits;
  Word cpu_ns;
};
static_assert(sizeof(Report) == 5 * sizeof(Word));

struct Decision {
  Word active;
  Word num_transfers;
  Word routed_tokens;
  Array<Word, 2> table;
  Array<Word, 1> lanes;
  Array<Word, 1> loads;
  Array<Word, 2> assigned;
  Array<Word, 2> assigned_moving;
  Array<Word, 1> plan;
  Array<Word, 2> routed;
};
static_assert(sizeof(Decision) == 21 * sizeof(Word));

struct SlotState {
  Word taken;
  Array<Word, 1> held;
  Array<std::uint8_t, 2> shield;
  Array<Word, 1> victims;
  Array<Word, 1> kept_victims;
  Array<std::uint8_t, 2> resident_then;
};
static_assert(sizeof(SlotState) == 13 * sizeof(Word));

struct CacheState {
  Array<double, 2> values;
  Array<double, 3> memory;
  Array<double, 1> numbers;
};
static_assert(sizeof(CacheState) == 9 * sizeof(Word));

struct Ahead {
  Word max_background;
  Word link_free_ns;
  Word link_price;
  Word link_price_seen;
  Word moves;
  Word moves_cost_ns;
  Word looked;
  Word prefetched;
  Word rest;
  Word resting;
  Word cpu_idle_layers;
  Array<Word, 1> lanes;
  Array<Word, 2> scratch;
  Array<Word, 1> starts;
  Array<Word, 1> delays;
  Array<Word, 2> background;
  Array<Word, 2> picks;
  Array<Word, 3> tables;
  Array<Word, 1> forecast_starts;
  Array<Word, 1> counts;
  Array<double, 1> weights;
  Array<Word, 2> missed;
  Array<Word, 1> candidates;
  Array<Word, 1> read_ahead_ids;
};
static_assert(sizeof(Ahead) == 43 * sizeof(Word));

struct Predictor {
  Word judged;
  Array<double, 1> trust;
  Array<double, 4> pairs;
  Array<double, 3> uses;
  Array<double, 1> posterior;
  Array<double, 2> ratios;
  Array<Word, 2> history_shapes;
  Array<Word, 2> history;
  Array<Word, 3> pending_shapes;
  Array<Word, 3> pending;
};
static_assert(sizeof(Predictor) == 31 * sizeof(Word));

struct Learned {
  double miss_rate;
  Word gap_ns;
  Word layer_ns;
  Word last_end_ns;
  Word extra_ns;
  Word moves_before;
  Word demanded_before;
  Word still_tokens;
  Word still_ns;
  Word stills;
  Word moving_ns;
  Word movings;
  Word moving_more_ns;
  Word demand_ns;
  Word demands;
  Word demand_more_ns;
};
static_assert(sizeof(Learned) == 16 * sizeof(Word));

struct State {
  Word layout;
  Setup setup;
  Costs costs;
  Inputs inputs;
  Forecasts forecasts;
  Report report;
  Decision decision;
  SlotState slots;
  CacheState cache;
  Ahead ahead;
  Predictor predictor;
  Learned learned;
};
static_assert(sizeof(State) == 214 * sizeof(Word));

}  // namespace moesaic::brain
