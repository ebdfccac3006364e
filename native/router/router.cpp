#include "router/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace moesaic {
namespace {

float rounded_to(const Kernels& kernels, Value value, float x) {
  if (value == Value::f32) return x;
  std::uint16_t half;
  kernels.narrow(&x, 1, value, &half);
  if (value == Value::bf16) {
    const std::uint32_t bits = std::uint32_t(half) << 16;
    float back;
    __builtin_memcpy(&back, &bits, 4);
    return back;
  }
  _Float16 back;
  __builtin_memcpy(&back, &half, 2);
  return float(back);
}

void softmax(float* scores, int count) {
  const float top = *std::max_element(scores, scores + count);
  float sum = 0;
  for (int i = 0; i < count; ++i) sum += scores[i] = std::exp(scores[i] - top);
  for (int i = 0; i < count; ++i) scores[i] /= sum;
}

struct Ranked {
  float value;
  std::int64_t index;
};

// The k best, best first. Ties fall as they do in PyTorch's `topk`, whose steps these are: which of
// two equal experts is chosen must not depend on who computes.
void best(const float* values, int count, int k, std::vector<Ranked>& all) {
  all.resize(count);
  for (int i = 0; i < count; ++i) all[i] = {values[i], i};
  const auto before = [](const Ranked& a, const Ranked& b) {
    return (std::isnan(a.value) && !std::isnan(b.value)) || a.value > b.value;
  };
  if (k * 64 <= count) {
    std::partial_sort(all.begin(), all.begin() + k, all.end(), before);
  } else {
    std::nth_element(all.begin(), all.begin() + k - 1, all.end(), before);
    std::sort(all.begin(), all.begin() + k - 1, before);
  }
}

// Experts outside the best groups count as nothing.
void limit_groups(const RouterRule& rule, float* preference, std::vector<Ranked>& room) {
  const int size = rule.experts / rule.groups;
  std::vector<float> of_group(rule.groups);
  for (int g = 0; g < rule.groups; ++g) {
    best(preference + g * size, size, rule.best_two ? 2 : 1, room);
    of_group[g] = rule.best_two ? room[0].value + room[1].value : room[0].value;
  }
  best(of_group.data(), rule.groups, rule.top_groups, room);
  std::vector<bool> allowed(rule.groups, false);
  for (int i = 0; i < rule.top_groups; ++i) allowed[room[i].index] = true;
  const float excluded = rule.sigmoid ? -std::numeric_limits<float>::infinity() : 0.0f;
  for (int g = 0; g < rule.groups; ++g)
    if (!allowed[g]) std::fill(preference + g * size, preference + (g + 1) * size, excluded);
}

void route_one(const Kernels& kernels, const RouterRule& rule, const RouterCall& call, int token) {
  // The first scores are waited for less if they are asked for before the norm.
  for (int at = 0; at < 8192; at += 64)
    __builtin_prefetch(static_cast<const char*>(call.gate) + at);
  const std::size_t row = std::size_t(token) * call.hidden * (call.value == Value::f32 ? 4 : 2);
  void* hidden = static_cast<char*>(call.normalized) + row;
  kernels.normalize(static_cast<const char*>(call.stream) + row, call.norm, call.value, call.hidden,
                    call.eps, hidden);
  float* scores = call.scores + std::size_t(token) * rule.experts;
  kernels.score(hidden, call.gate, call.value, rule.experts, call.hidden, scores);
  if (!rule.in_fp32)
    for (int i = 0; i < rule.experts; ++i) scores[i] = rounded_to(kernels, call.value, scores[i]);
  if (rule.sigmoid)
    for (int i = 0; i < rule.experts; ++i) scores[i] = 1.0f / (1.0f + std::exp(-scores[i]));
  else
    softmax(scores, rule.experts);

  float* preference = call.preference + std::size_t(token) * rule.experts;
  for (int i = 0; i < rule.experts; ++i) preference[i] = scores[i] + (call.bias ? call.bias[i] : 0.0f);
  std::vector<Ranked> chosen;
  if (rule.groups > 1) limit_groups(rule, preference, chosen);

  std::int64_t* ids = call.ids + std::size_t(token) * rule.top_k;
  float* weights = call.weights + std::size_t(token) * rule.top_k;
  best(preference, rule.experts, rule.top_k, chosen);
  float sum = 0;
  for (int k = 0; k < rule.top_k; ++k) {
    ids[k] = chosen[k].index;
    weights[k] = call.bias ? scores[ids[k]] : chosen[k].value;
    sum += weights[k];
  }
  for (int k = 0; k < rule.top_k; ++k) {
    if (rule.normalized) weights[k] /= sum + (rule.sigmoid ? 1e-20f : 0.0f);
    weights[k] *= rule.factor;
    if (rule.round_weights && !rule.in_fp32)
      weights[k] = rounded_to(kernels, call.value, weights[k]);
  }
}

}  // namespace

void route(const Kernels& kernels, const RouterRule& rule, const RouterCall& call) {
  for (int token = 0; token < call.tokens; ++token) route_one(kernels, rule, call, token);
}

}  // namespace moesaic
