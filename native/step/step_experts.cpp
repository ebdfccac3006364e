// Router, routed and shared experts, dense layers of a decode step.
#include <array>
#include <cmath>
#include <cstring>

#include "step/step_job.h"

namespace moesaic {

int StepJob::begin_router(const StepLayer& layer) {
  if (!layer.routed()) return 0;
  stamp(layer, 0);
  ranges_.reset(divide_up(network_.router.experts, kRouterRows));
  return worker_slots_;
}

void StepJob::run_router(const StepLayer& layer, int worker) {
  const int experts = network_.router.experts;
  for (int item; (item = ranges_.take(worker)) >= 0;) {
    const int first = item * kRouterRows, rows = std::min(kRouterRows, experts - first);
    const std::uint16_t* gate = layer.gate + std::size_t(first) * sizes_.hidden;
    for (int t = 0; t < call_.tokens; ++t)
      kernels_.router_scores(buffers_.normed + std::size_t(t) * sizes_.hidden, gate, FloatType::bf16, rows,
                             sizes_.hidden,
                             call_.scores + (rows_before(layer) + t) * std::size_t(experts) + first);
  }
}

void StepJob::choose(const StepLayer& layer, int token) {
  RouterConfig router = network_.router;
  const int top_k = router.top_k, experts = router.experts;
  const std::size_t row = rows_before(layer) + token;
  std::int64_t* ids = call_.ids + row * top_k;
  float* weights = call_.weights + row * top_k;
  std::fill(ids, ids + top_k, -1);
  std::fill(weights, weights + top_k, 0.0f);
  router.top_k = call_.counts ? int(call_.counts[token]) : top_k;
  choose_experts(kernels_, router, FloatType::bf16, layer.gate_bias,
                 {call_.scores + row * experts, call_.selection_scores + row * experts, ids, weights});
  if (!call_.forced_ids) return;
  std::memcpy(ids, call_.forced_ids + row * top_k, top_k * sizeof *ids);
  std::memcpy(weights, call_.forced_weights + row * top_k, top_k * sizeof *weights);
}

int StepJob::begin_experts(const StepLayer& layer) {
  experts_job_ = network_job_ = nullptr;
  if (layer.routed()) {
    stamp(layer, 1);
    begin_routed(layer);
  }
  if (layer.network) begin_network(layer);
  return worker_slots_;
}

// All experts of a single token have the same inputs: they are filled with its norm, not after the router.
void StepJob::fill_token(const StepLayer& layer) {
  const ExpertLayout& layout = (layer.routed() ? context_.experts : context_.dense).layout;
  fill_columns(context_.multiplier, layout.dtype, layout.up, buffers_.panel, buffers_.normed, 1, 0, 0,
               sizes_.hidden);
  token_panel_ = buffers_.panel.panel(layout.up, 1);
}

LayerCall StepJob::layer_call() const {
  LayerCall call;
  call.hidden = buffers_.normed;
  call.hidden_type = call.out_type = FloatType::bf16;
  call.hidden_stride = sizes_.hidden;
  call.tokens = call_.tokens;
  call.out = buffers_.residual;
  call.add = true;
  call.inputs = call_.tokens == 1 ? &token_panel_ : nullptr;
  return call;
}

void StepJob::begin_routed(const StepLayer& layer) {
  const int top_k = network_.router.top_k, experts = network_.router.experts;
  const std::int64_t* ids = call_.ids + rows_before(layer) * top_k;
  used_.clear();
  blocks_.clear();
  seen_.assign(experts, 0);
  for (int i = 0; i < call_.tokens * top_k; ++i) {
    const std::int64_t id = ids[i];
    // Padding becomes one expert more than there are, which is not listed and so not computed.
    buffers_.padded_ids[i] = id < 0 ? experts : id;
    if (id < 0 || seen_[id]) continue;
    seen_[id] = 1;
    used_.push_back(std::int32_t(id));
    blocks_.push_back(reinterpret_cast<const std::uint8_t*>(layer.experts[id]));
  }
  if (used_.empty()) {  // a replayed routing may leave a layer out
    if (layer.adds_two())
      std::memset(buffers_.routed_sum, 0, std::size_t(call_.tokens) * sizes_.hidden * 2);
    return;
  }
  LayerCall call = layer_call();
  call.top_k = top_k;
  call.experts_total = experts + 1;
  call.ids = buffers_.padded_ids;
  call.weights = call_.weights + rows_before(layer) * top_k;
  call.count = int(used_.size());
  call.experts = used_.data();
  call.blocks = blocks_.data();
  if (layer.adds_two()) call.out = buffers_.routed_sum, call.add = false;
  experts_job_ = context_.experts_layer.get();
  experts_job_->begin(call, context_.expert_memory);
}

// Shared experts or a dense layer: one expert that every token uses.
void StepJob::begin_network(const StepLayer& layer) {
  static constexpr std::int64_t kIds[kMaxStepTokens] = {};
  static const auto kWeights = [] {
    std::array<float, kMaxStepTokens> ones;
    ones.fill(1.0f);
    return ones;
  }();
  static constexpr std::int32_t kExpert = 0;
  LayerCall call = layer_call();
  if (layer.routed() && context_.shared.layout.dtype != context_.experts.layout.dtype) call.inputs = nullptr;
  call.top_k = call.experts_total = call.count = 1;
  call.ids = kIds;
  call.weights = kWeights.data();
  call.experts = &kExpert;
  call.blocks = &layer.network;
  if (layer.adds_two()) call.out = buffers_.shared_sum, call.add = false;
  network_job_ = (layer.routed() ? context_.shared_layer : context_.dense_layer).get();
  network_job_->begin(call, context_.network_memory);
  if (!layer.shared_gate) return;
  for (int t = 0; t < call_.tokens; ++t) {
    float logit;
    kernels_.router_scores(buffers_.normed + std::size_t(t) * sizes_.hidden, layer.shared_gate,
                           FloatType::bf16, 1, sizes_.hidden, &logit);
    float values[2] = {logit, 0};  // the logit and its sigmoid are rounded, as PyTorch does
    std::uint16_t half;
    kernels_.narrow(values, 1, FloatType::bf16, &half);
    step_.widen(&half, 1, values);
    values[0] = 1.0f / (1.0f + std::exp(-values[0])) + 0.0f * values[0];  // NaN where it is infinite
    kernels_.narrow(values, 1, FloatType::bf16, &half);
    step_.widen(&half, 1, buffers_.shared_gate + t);
  }
}

}  // namespace moesaic
