// Checks a call before anything is computed.
#include <algorithm>
#include <cmath>

#include "layer/layer.h"

namespace moesaic {

std::string validate(const LayerConfig& config, const LayerCall& call) {
  const auto number = [](long long value) { return std::to_string(value); };
  if (call.tokens < 0 || call.top_k < 0 || call.count < 0) return "counts must not be negative";
  if (call.experts_total > kMaxExperts)
    return "there are " + number(call.experts_total) + " experts; at most " + number(kMaxExperts) +
           " are supported";
  // Rows and tokens are counted in 32 bits.
  if (std::int64_t(call.tokens) * call.top_k > kMaxRows)
    return "a layer of " + number(call.tokens) + " tokens by " + number(call.top_k) +
           " experts has more than " + number(kMaxRows) + " rows";
  if (call.tokens == 0) return "";
  if (!call.hidden || !call.out) return "hidden states or result are missing";
  if (call.add && call.out_type != FloatType::f32) return "only an fp32 result can be added to";
  if (call.top_k && (!call.ids || !call.weights)) return "expert numbers or weights are missing";
  if (call.count && (!call.experts || !call.blocks)) return "experts or their blocks are missing";
  if (call.tokens > 1 && call.hidden_stride < std::size_t(config.layout.hidden))
    return "rows of hidden states are " + number(call.hidden_stride) + " values apart, but have " +
           number(config.layout.hidden);
  std::vector<bool> seen(std::max(call.experts_total, 0), false);
  for (int i = 0; i < call.count; ++i) {
    const int expert = call.experts[i];
    if (expert < 0 || expert >= call.experts_total)
      return "expert " + number(expert) + " is to be computed, but there are " + number(call.experts_total);
    if (seen[expert]) return "expert " + number(expert) + " is listed twice";
    seen[expert] = true;
    const auto address = reinterpret_cast<std::uintptr_t>(call.blocks[i]);
    if (address == 0 || address % kAlignment)
      return "the block of expert " + number(expert) + " does not begin at a multiple of " +
             number(kAlignment) + " bytes";
  }
  for (std::size_t p = 0; p < std::size_t(call.tokens) * call.top_k; ++p) {
    if (call.ids[p] < 0 || call.ids[p] >= call.experts_total)
      return "token " + number(p / call.top_k) + " asks for expert " + number(call.ids[p]) +
             ", but there are " + number(call.experts_total);
    if (call.strict && !std::isfinite(call.weights[p]))
      return "token " + number(p / call.top_k) + " has a routing weight that is not a number";
  }
  return "";
}

}  // namespace moesaic
