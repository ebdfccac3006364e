// RMSNorm and router of a few tokens in one call: normalise, score every expert, choose the top k. As
// separate operations, dispatching them would take longer than computing.
#pragma once

#include "products/kernels.h"

namespace moesaic {

// The fields of `RouterRule` in moesaic/models/experts/router.py, which says which models use them.
struct RouterConfig {
  int experts = 0, top_k = 0;
  bool sigmoid = false, renormalize = false, in_fp32 = false, round_weights = false;
  float scaling_factor = 1.0f;
  int groups = 1, top_groups = 1;
  bool top2_group_score = false;  // a group's score is the sum of its two best, instead of its best
};

struct RouterCall {
  const void* residual = nullptr;   // [tokens, hidden]
  const void* norm = nullptr;       // [hidden]
  const void* gate = nullptr;       // [experts, hidden]
  const float* bias = nullptr;      // [experts], or null
  FloatType type = FloatType::f32;  // of residual, norm and gate
  int tokens = 0, hidden = 0;
  float eps = 0;
  void* normalized = nullptr;         // [tokens, hidden]
  std::int64_t* ids = nullptr;        // [tokens, top_k]
  float* weights = nullptr;           // [tokens, top_k]
  float* scores = nullptr;            // [tokens, experts]
  float* selection_scores = nullptr;  // [tokens, experts]: with bias and group limit; may be `scores`
};

// Of one token. `scores` are logits before and probabilities after.
struct RouterChoice {
  float *scores, *selection_scores;  // [experts]
  std::int64_t* ids;                 // [top_k]
  float* weights;                    // [top_k]
};

void choose_experts(const Kernels& kernels, const RouterConfig& config, FloatType type, const float* bias,
                    const RouterChoice& to);

void route(const Kernels& kernels, const RouterConfig& config, const RouterCall& call);

}  // namespace moesaic
