// What routers want of a token, all of top-k, whatever it uses of that: kept for the pass that runs the token again, where
// it is known before a layer is reached (policies/fallback_prefetch.py).
#pragma once

#include <algorithm>
#include <cstdint>

namespace moesaic {

// Arrays [layers, tokens, top_k] of one step; null: there is none.
struct Wants {
  const std::int64_t* ids = nullptr;  // what tokens that run again wanted; -1: nothing is known of this token
  const float* scores = nullptr;
  std::int64_t* seen_ids = nullptr;   // filled: what the tokens of this step want
  float* seen_scores = nullptr;
  int distance = 0;      // layers ahead of which the brain is given `ids`
  bool whole = false;    // every token runs again
  bool trusted = false;  // so are most, and the brain need not judge forecasts of them
  std::int64_t right = 0, judged = 0;  // experts that tokens used which ran again: wanted before, and all

  // The share of right ones so far; 0 would stand for none known (LEAST_TRUST of policies/brain/brain.py).
  double trust() const { return judged ? std::max(double(right) / double(judged), 1e-3) : 1.0; }
};

}  // namespace moesaic
