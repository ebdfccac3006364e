#include "router/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace moesaic {
namespace {

float rounded_to(const Kernels& kernels, FloatType type, float x) {
  if (type == FloatType::f32) return x;
  std::uint16_t half;
  kernels.narrow(&x, 1, type, &half);
  if (type == FloatType::bf16) {
    const std::uint32_t bits = std::uint32_t(half) << 16;
    float back;
    __builtin_memcpy(&back, &bits, 4);
    return back;
  }
  _Float16 back;
  __builtin_memcpy(&back, &half, 2);
  return float(back);
}

// Many at once: `rounded_to` of each.
void round_all(const Kernels& kernels, FloatType type, float* values, int count) {
  constexpr int kPiece = 256;
  std::uint16_t halves[kPiece];
  if (type != FloatType::bf16) {
    for (int i = 0; i < count; ++i) values[i] = rounded_to(kernels, type, values[i]);
    return;
  }
  for (int done = 0; done < count; done += kPiece) {
    const int some = std::min(kPiece, count - done);
    kernels.narrow(values + done, some, type, halves);
    kernels.step->widen(halves, some, values + done);
  }
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

// The k largest, in order, where no two of them and none of the others are equal: then every algorithm finds
// the same. False: some are, or a value is NaN.
bool distinct_top_k(const float* values, int count, int k, std::vector<Ranked>& best) {
  const int kept = std::min(k + 1, count);  // one more, which might be equal to the last
  best.clear();
  best.reserve(kept);
  for (int i = 0; i < count; ++i) {
    const float value = values[i];
    if (std::isnan(value)) return false;
    if (int(best.size()) == kept) {
      if (value <= best.back().value) continue;
      best.pop_back();
    }
    best.push_back({value, i});
    for (int at = int(best.size()) - 1; at > 0 && best[at - 1].value < value; --at)
      std::swap(best[at - 1], best[at]);
  }
  for (int i = 1; i < kept; ++i)
    if (best[i - 1].value == best[i].value) return false;
  return true;
}

// The k largest, in order. Ties are broken as in PyTorch's `topk`, by the same algorithm: which of two
// equal experts is chosen must not depend on the implementation.
void top_k(const float* values, int count, int k, std::vector<Ranked>& all) {
  if (distinct_top_k(values, count, k, all)) return;
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

// Group-limited routing: experts outside the best groups are excluded.
void limit_groups(const RouterConfig& config, float* selection, std::vector<Ranked>& ranked) {
  const int size = config.experts / config.groups;
  std::vector<float> group_scores(config.groups);
  for (int g = 0; g < config.groups; ++g) {
    top_k(selection + g * size, size, config.top2_group_score ? 2 : 1, ranked);
    group_scores[g] = config.top2_group_score ? ranked[0].value + ranked[1].value : ranked[0].value;
  }
  top_k(group_scores.data(), config.groups, config.top_groups, ranked);
  std::vector<bool> allowed(config.groups, false);
  for (int i = 0; i < config.top_groups; ++i) allowed[ranked[i].index] = true;
  const float excluded = config.sigmoid ? -std::numeric_limits<float>::infinity() : 0.0f;
  for (int g = 0; g < config.groups; ++g)
    if (!allowed[g]) std::fill(selection + g * size, selection + (g + 1) * size, excluded);
}

void route_one(const Kernels& kernels, const RouterConfig& config, const RouterCall& call, int token) {
  // Prefetch the first rows of the gate while the norm is computed.
  for (int at = 0; at < 8192; at += 64) __builtin_prefetch(static_cast<const char*>(call.gate) + at);
  const std::size_t row = std::size_t(token) * call.hidden * (call.type == FloatType::f32 ? 4 : 2);
  void* hidden = static_cast<char*>(call.normalized) + row;
  kernels.rms_norm(static_cast<const char*>(call.residual) + row, call.norm, call.type, call.hidden, call.eps,
                   hidden);
  float* scores = call.scores + std::size_t(token) * config.experts;
  kernels.router_scores(hidden, call.gate, call.type, config.experts, call.hidden, scores);
  choose_experts(kernels, config, call.type, call.bias,
                 {scores, call.selection_scores + std::size_t(token) * config.experts,
                  call.ids + std::size_t(token) * config.top_k,
                  call.weights + std::size_t(token) * config.top_k});
}

}  // namespace

void choose_experts(const Kernels& kernels, const RouterConfig& config, FloatType type, const float* bias,
                    const RouterChoice& to) {
  const auto [scores, selection, ids, weights] = to;
  if (!config.in_fp32)
    round_all(kernels, type, scores, config.experts);
  float sum_of_logits = 0;
  for (int i = 0; i < config.experts; ++i) sum_of_logits += scores[i] + (bias ? bias[i] : 0.0f);
  const float broken = 0.0f * sum_of_logits;  // NaN where a logit is not finite, which scores may hide
  if (config.sigmoid)
    for (int i = 0; i < config.experts; ++i) scores[i] = 1.0f / (1.0f + std::exp(-scores[i]));
  else
    softmax(scores, config.experts);

  for (int i = 0; i < config.experts; ++i) selection[i] = scores[i] + (bias ? bias[i] : 0.0f);
  std::vector<Ranked> chosen;
  if (config.groups > 1) limit_groups(config, selection, chosen);

  top_k(selection, config.experts, config.top_k, chosen);
  float sum = 0;
  for (int k = 0; k < config.top_k; ++k) {
    ids[k] = chosen[k].index;
    weights[k] = bias ? scores[ids[k]] : chosen[k].value;
    sum += weights[k];
  }
  for (int k = 0; k < config.top_k; ++k) {
    if (config.renormalize) weights[k] /= sum + (config.sigmoid ? 1e-20f : 0.0f);
    weights[k] = weights[k] * config.scaling_factor + broken;
    if (config.round_weights && !config.in_fp32) weights[k] = rounded_to(kernels, type, weights[k]);
  }
}

void route(const Kernels& kernels, const RouterConfig& config, const RouterCall& call) {
  for (int token = 0; token < call.tokens; ++token) route_one(kernels, config, call, token);
}

}  // namespace moesaic
