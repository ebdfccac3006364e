// Enums as callers give them: integers, refused where no such value exists.
#pragma once

#include <cmath>
#include <string>

#include "layer/runner.h"
#include "router/router.h"

namespace moesaic {

template <class Enum>
Enum checked_code(int value, int count, const char* what) {
  if (value < 0 || value >= count)
    throw InvalidCall("no such " + std::string(what) + ": " + std::to_string(value));
  return Enum(value);
}

inline Dtype checked_dtype(int value) { return checked_code<Dtype>(value, 3, "precision"); }
inline FloatType checked_type(int value) { return checked_code<FloatType>(value, 3, "floating-point type"); }
inline Activation checked_activation(int value) { return checked_code<Activation>(value, 3, "activation"); }
inline Isa checked_isa(int value) { return checked_code<Isa>(value, kIsaCodes, "instruction set"); }

// Nanoseconds; a day is as good as for ever.
inline std::int64_t checked_spin_ns(double spin_us) {
  constexpr double kDay = 86400e6;
  if (!(spin_us >= 0 && spin_us <= kDay)) throw InvalidCall("a worker spins for 0 us to a day");
  return std::int64_t(spin_us * 1000);
}

// Throws unless the settings can be computed with.
inline void check_router(const RouterConfig& config) {
  const int experts = config.experts, top_k = config.top_k, groups = config.groups;
  if (experts > kMaxExperts || top_k < 1 || top_k > experts || groups < 1 || experts % groups ||
      config.top_groups < 1 || config.top_groups > groups ||
      (config.top2_group_score && groups > 1 && experts / groups < 2))
    throw InvalidCall("a router's settings contradict each other");
  // Experts outside the best groups are masked; with too few left, some of them would be chosen.
  if (groups > 1 && top_k > experts / groups * config.top_groups)
    throw InvalidCall("a router's best groups have fewer experts than a token uses");
}

inline void check_route(const RouterCall& call) {
  if (call.tokens < 0 || call.hidden < 1) throw InvalidCall("a router needs tokens and a hidden size");
  if (call.tokens && !(call.residual && call.norm && call.gate && call.normalized && call.ids &&
                       call.weights && call.scores && call.selection_scores))
    throw InvalidCall("a router's inputs or results are missing");
}

}  // namespace moesaic
