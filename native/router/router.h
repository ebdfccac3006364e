// A router in one call: normalise, score every expert, choose. For few tokens, where the time is in
// starting operations rather than in doing them.
#pragma once

#include "products/kernels.h"

namespace moesaic {

// As moesaic/models/router.py has it, which says what each rule is for.
struct RouterRule {
  int experts = 0, top_k = 0;
  bool sigmoid = false, normalized = false, in_fp32 = false, round_weights = false;
  float factor = 1.0f;
  int groups = 1, top_groups = 1;
  bool best_two = false;  // a group's score is the sum of its two best, instead of its best
};

struct RouterCall {
  const void* stream = nullptr;  // [tokens, hidden]
  const void* norm = nullptr;    // [hidden]
  const void* gate = nullptr;    // [experts, hidden]
  const float* bias = nullptr;   // [experts], or none
  Value value = Value::f32;      // of all three
  int tokens = 0, hidden = 0;
  float eps = 0;
  void* normalized = nullptr;        // [tokens, hidden]
  std::int64_t* ids = nullptr;       // [tokens, top_k]
  float* weights = nullptr;          // [tokens, top_k]
  float* scores = nullptr;           // [tokens, experts]
  float* preference = nullptr;       // [tokens, experts]; may be the scores
};

void route(const Kernels& kernels, const RouterRule& rule, const RouterCall& call);

}  // namespace moesaic
