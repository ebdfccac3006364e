#include "step/step_job.h"

#include <cstring>

namespace moesaic {

StepJob::StepJob(StepContext& context, const StepCache& cache, const StepCall& call, int worker_slots)
    : context_(context),
      network_(context.network),
      sizes_(context.network.sizes),
      kernels_(*context.multiplier.kernels),
      step_(*kernels_.step),
      cache_(cache),
      call_(call),
      worker_slots_(worker_slots),
      buffers_(network_, call, worker_slots, context.memory),
      products_(context.multiplier, worker_slots),
      ranges_(0, worker_slots),
      unfinished_parts_(std::size_t(call.tokens) * buffers_.most.groups),
      ahead_(worker_slots),
      later_(worker_slots),
      prepared_(worker_slots) {
  used_.reserve(std::size_t(call.tokens) * network_.router.top_k);
  blocks_.reserve(used_.capacity());
  turn_tokens();
  const std::size_t hidden = sizes_.hidden;
  for (int t = 0; t < call.tokens; ++t)
    std::memcpy(buffers_.residual + t * hidden, network_.embedding + call.numbers[t] * hidden, hidden * 2);
}

int StepJob::items(int phase) {
  if (!call_.phase_times) return prepare(phase);
  call_.phase_times[2 * phase] = now_ns();
  const int count = prepare(phase);
  call_.phase_times[2 * phase + 1] = now_ns();
  return count;
}

int StepJob::prepare(int phase) {
  const int number = phase / kPhases;
  if (number == int(network_.layers.size()))
    return phase % kPhases == 0 ? by_token(phase) : begin_products(head());
  const StepLayer& layer = network_.layers[number];
  switch (phase % kPhases) {
    case kBegin:
    case kMiddle: return by_token(phase);
    case kChoose: return layer.routed() ? by_token(phase) : 0;
    case kProject: return begin_products(projections(layer));
    case kQueryUp: return begin_query_up(layer);
    case kAbsorb: return layer.attention.latent() ? layer.attention.heads + call_.tokens : 0;
    case kExpand: return layer.attention.latent() ? layer.attention.heads : 0;
    case kAttend: return begin_attention(layer);
    case kOutput: return begin_output(layer);
    case kRoute: return begin_router(layer);
    case kUp: return begin_experts(layer);
    default: return worker_slots_;
  }
}

void StepJob::run(int phase, int item, int worker) {
  const int number = phase / kPhases;
  read_ahead(phase, worker);
  if (number == int(network_.layers.size()))
    return phase % kPhases == 0 ? run_token(phase, item) : run_products(worker);
  const StepLayer& layer = network_.layers[number];
  switch (phase % kPhases) {
    case kBegin:
    case kMiddle:
    case kChoose: return run_token(phase, item);
    case kAbsorb:
      return item < layer.attention.heads ? absorb(layer, item)
                                          : cache_latent(layer, number, item - layer.attention.heads);
    case kExpand: return expand(layer, item);
    case kAttend:
      for (int each; (each = ranges_.take(worker)) >= 0;) run_attention(number, each, worker);
      return;
    case kRoute: return run_router(layer, worker);
    case kUp:
    case kDown:
      for (RepeatedLayer* job : {experts_job_, network_job_})
        if (job) job->run(phase % kPhases - kUp, item, worker);
      return;
    default: return run_products(worker);
  }
}

int StepJob::by_token(int phase) {
  const int number = phase / kPhases;
  if (phase % kPhases == kBegin && number > 0) stamp(network_.layers[number - 1], 2);
  if (call_.tokens > kSerialTokens) return call_.tokens;
  for (int t = 0; t < call_.tokens; ++t) run_token(phase, t);
  return 0;
}

void StepJob::run_token(int phase, int token) {
  const int number = phase / kPhases;
  if (number == int(network_.layers.size())) return end_layers(token);
  const StepLayer& layer = network_.layers[number];
  switch (phase % kPhases) {
    case kBegin: return begin_layer(number, token);
    case kMiddle: return middle(layer, token);
    default: return choose(layer, token);
  }
}

void StepJob::begin_layer(int number, int token) {
  if (number > 0) add_feed_forward(network_.layers[number - 1], token);
  const std::size_t at = std::size_t(token) * sizes_.hidden;
  kernels_.rms_norm(buffers_.residual + at, network_.layers[number].attention_norm, FloatType::bf16,
                    sizes_.hidden, sizes_.eps, buffers_.normed + at);
  fill(*projections(network_.layers[number]).products[0].matrix, buffers_.normed + at, token, 0,
       sizes_.hidden);
}

void StepJob::end_layers(int token) {
  add_feed_forward(network_.layers.back(), token);
  const std::size_t at = std::size_t(token) * sizes_.hidden;
  kernels_.rms_norm(buffers_.residual + at, network_.norm, FloatType::bf16, sizes_.hidden, sizes_.eps,
                    buffers_.normed + at);
  fill(network_.head, buffers_.normed + at, token, 0, sizes_.hidden);
}

void StepJob::add_feed_forward(const StepLayer& layer, int token) {
  if (!layer.adds_two()) return;  // the down products have
  const std::size_t at = std::size_t(token) * sizes_.hidden;
  step_.add_residual(buffers_.residual + at, buffers_.routed_sum + at, buffers_.shared_sum + at,
                     layer.shared_gate ? buffers_.shared_gate[token] : 1.0f, sizes_.hidden);
}

void StepJob::middle(const StepLayer& layer, int token) {
  const std::size_t at = std::size_t(token) * sizes_.hidden;
  kernels_.rms_norm(buffers_.residual + at, layer.feed_forward_norm, FloatType::bf16, sizes_.hidden,
                    sizes_.eps, buffers_.normed + at);
  if (call_.tokens == 1) fill_token(layer);
}

// The panel, which has been filled, is multiplied with matrices of one precision.
int StepJob::begin_products(const StepProducts& of) {
  products_.begin(of.products, of.count,
                  buffers_.panel.panel(of.products[0].matrix->layout, call_.tokens));
  return worker_slots_;
}

StepProducts StepJob::projections(const StepLayer& layer) const {
  const bool bottleneck = layer.query_down.data != nullptr;
  const PhaseProduct first =
      bottleneck ? PhaseProduct{&layer.query_down, layer.query_down_bias, buffers_.query_down,
                                std::size_t(layer.attention.query_rank)}
                 : PhaseProduct{&layer.query, layer.query_bias, buffers_.query,
                                std::size_t(layer.attention.queries())};
  return {{first,
           {&layer.key, layer.key_bias, buffers_.key, std::size_t(layer.key.layout.outputs)},
           {&layer.value, layer.value_bias, buffers_.value, std::size_t(layer.value.layout.outputs)}},
          layer.value.data ? 3 : 2};
}

StepProducts StepJob::query_up(const StepLayer& layer) const {
  const std::size_t stride = layer.attention.queries();
  return {{{&layer.query, layer.query_bias, buffers_.query, stride}, {}, {}}, 1};
}

StepProducts StepJob::output(const StepLayer& layer) const {
  const std::size_t stride = sizes_.hidden;
  return {{{&layer.output, layer.output_bias, buffers_.residual, stride, true}, {}, {}}, 1};
}

StepProducts StepJob::head() const {
  return {{{&network_.head, nullptr, call_.logits, std::size_t(sizes_.vocabulary)}, {}, {}}, 1};
}

}  // namespace moesaic
