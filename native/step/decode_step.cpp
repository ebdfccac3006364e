#include "step/decode_step.h"

#include <string>

#include "api/codes.h"

namespace moesaic {
namespace {

void require(bool condition, const std::string& message) {
  if (!condition) throw InvalidCall(message);
}

const Kernels* supported(Isa isa) {
  const Kernels* kernels = kernels_for(isa);
  require(kernels, "this CPU does not support the instruction set asked for");
  return kernels;
}

void check_sizes(const StepSizes& sizes, const RouterConfig& router) {
  constexpr int kMaxSize = 1 << 20;
  for (const int size : {sizes.hidden, sizes.vocabulary})
    require(size >= 1 && size <= kMaxSize * 4, "a network's sizes are at least 1");
  for (const int size : {sizes.expert_width, sizes.shared_width, sizes.dense_width})
    require(size >= 0 && size <= kMaxSize, "a network's sizes are not negative");
  checked_activation(sizes.activation);
  if (router.experts == 0) return;
  check_router(router);
  require(router.top_k <= kMaxStepExperts,
          "a token uses at most " + std::to_string(kMaxStepExperts) + " experts");
}

void check_matrix(const PackedMatrix& matrix, int outputs, int inputs, Dtype dtype, const char* name) {
  require(matrix.data && reinterpret_cast<std::uintptr_t>(matrix.data) % kAlignment == 0,
          std::string(name) + " is missing or not aligned");
  require(matrix.dtype == dtype, std::string(name) + " is stored in another precision");
  require(matrix.layout.outputs == outputs && matrix.layout.inputs == inputs,
          std::string(name) + " is " + std::to_string(matrix.layout.outputs) + " x " +
              std::to_string(matrix.layout.inputs) + ", not " + std::to_string(outputs) + " x " +
              std::to_string(inputs));
}

void check_shape(const StepAttention& of, const std::vector<StepRope>& ropes) {
  constexpr int kMaxSize = 1 << 20;
  for (const int size : {of.heads, of.head_dim})
    require(size >= 1 && size <= kMaxSize, "a layer's heads and their width are at least 1");
  for (const int size : {of.rank, of.query_rank, of.plain_dim, of.rope_key_dim, of.value_dim})
    require(size >= 0 && size <= kMaxSize, "the sizes of a layer's attention are not negative");
  require(of.qk_norm >= 0 && of.qk_norm <= 2, "no such norm of queries and keys");
  require(of.rope >= 0 && std::size_t(of.rope) < ropes.size(), "the network has no such rotation");
  const int turned = ropes[of.rope].dim;
  if (of.latent()) {
    require(of.plain_dim + of.rope_key_dim == of.head_dim && of.value_dim > 0 && turned == of.rope_key_dim,
            "the parts of a latent query do not make up a head");
  } else {
    require(of.kv_heads >= 1 && of.heads % of.kv_heads == 0, "every KV head has as many query heads");
    require(turned <= of.head_dim, "the rotated part of a head is no longer than the head");
  }
}

void check_attention(const StepNetwork& network, const StepLayer& layer) {
  const StepSizes& sizes = network.sizes;
  const StepAttention& of = layer.attention;
  check_shape(of, network.ropes);
  const Dtype dtype = checked_dtype(sizes.attention_dtype);
  require(layer.attention_norm && layer.feed_forward_norm, "a layer's norms are missing");
  check_matrix(layer.output, sizes.hidden, of.attended(), dtype, "the output projection");
  const bool bottleneck = of.query_rank > 0;
  check_matrix(layer.query, of.queries(), bottleneck ? of.query_rank : sizes.hidden, dtype,
               "the query projection");
  if (!of.latent()) {
    require(!bottleneck, "only latent attention has a bottleneck");
    check_matrix(layer.key, of.keys(), sizes.hidden, dtype, "the key projection");
    check_matrix(layer.value, of.keys(), sizes.hidden, dtype, "the value projection");
    require(of.qk_norm == 0 || (layer.query_norm && layer.key_norm),
            "norms of queries and keys are missing");
    return;
  }
  check_matrix(layer.key, of.rank + of.rope_key_dim, sizes.hidden, dtype, "the latent projection");
  require(layer.key_norm && layer.expand && !layer.value.data, "a latent layer's parts are missing");
  if (bottleneck)
    check_matrix(layer.query_down, of.query_rank, sizes.hidden, dtype, "the queries' bottleneck");
  require(bottleneck == (layer.query_down.data != nullptr) && (!bottleneck || layer.query_norm),
          "the queries' bottleneck is missing");
}

void check_layer(const StepNetwork& network, const StepLayer& layer) {
  const StepSizes& sizes = network.sizes;
  const RouterConfig& router = network.router;
  check_attention(network, layer);
  if (layer.routed()) {
    require(router.experts > 0 && sizes.expert_width > 0 && layer.experts, "a layer's experts are missing");
    for (int e = 0; e < router.experts; ++e)
      require(layer.experts[e] && layer.experts[e] % kAlignment == 0,
              "the block of expert " + std::to_string(e) + " is missing or not aligned");
  }
  require((layer.network != nullptr) == ((layer.routed() ? sizes.shared_width : sizes.dense_width) > 0),
          "a layer's dense or shared network is missing, or has no width");
  require(reinterpret_cast<std::uintptr_t>(layer.network) % kAlignment == 0, "a block is not aligned");
}

StepContext checked_context(Isa isa, StepNetwork network) {
  const StepSizes& sizes = network.sizes;
  check_sizes(sizes, network.router);
  require(!network.layers.empty() && network.embedding && network.norm,
          "a network has layers, an embedding and a norm");
  for (const StepRope& rope : network.ropes)
    require(rope.dim >= 0 && rope.dim % 2 == 0 && rope.dim <= 1 << 20 && (rope.frequencies || !rope.dim),
            "a rotation has an angle for every two values");
  int routed = 0;
  for (StepLayer& layer : network.layers) {
    check_layer(network, layer);
    layer.routed_number = layer.routed() ? routed++ : -1;
  }
  require(network.head.data, "the head is missing");
  check_matrix(network.head, sizes.vocabulary, sizes.hidden, network.head.dtype, "the head");
  Multiplier multiplier{supported(isa),
                        {sizes.tiles_from_bf16, sizes.tiles_from_int8, sizes.tiles_from_int4}};
  const auto config = [&](int dtype, int width) {
    const Dtype stored = checked_dtype(dtype);
    return LayerConfig{ExpertLayout(stored, sizes.hidden, width), Activation(sizes.activation),
                       multiplier.kernels, multiplier.tiles_from[dtype]};
  };
  return {network,
          multiplier,
          config(sizes.expert_dtype, sizes.expert_width),
          config(sizes.network_dtype, sizes.shared_width),
          config(sizes.network_dtype, sizes.dense_width),
          {},
          {},
          {},
          nullptr,
          nullptr,
          nullptr};
}

void check_call(const StepNetwork& network, const StepCache& cache, const StepCall& call) {
  require(call.tokens >= 1 && call.tokens <= kMaxStepTokens,
          "a step has 1 to " + std::to_string(kMaxStepTokens) + " tokens");
  require(cache.slots >= 1 && cache.length >= 1 && cache.table, "there is no KV cache");
  require(cache.layers.size() == network.layers.size(), "every layer has its part of the KV cache");
  for (std::size_t number = 0; number < cache.layers.size(); ++number) {
    const StepLayerCache& layer = cache.layers[number];
    for (const StepCached* part : {&layer.first, &layer.second}) {
      require(!part->codes != !part->values, "a layer's part of the KV cache is missing, or in two precisions");
      require(!part->codes == !part->scales, "codes of a KV cache come with scales");
    }
    require(network.layers[number].attention.latent() ? !layer.second.codes
                                                      : !layer.first.codes == !layer.second.codes,
            "keys and values have the same precision, and rotary keys are bf16");
  }
  require(call.numbers && call.slots && call.positions && call.logits, "tokens or logits are missing");
  require(!network.router.experts || (call.ids && call.weights && call.scores && call.selection_scores &&
                                      call.times),
          "there is no space for the routing");
  require(!call.forced_ids == !call.forced_weights, "a replayed routing has experts and weights");
  for (int t = 0; t < call.tokens; ++t) {
    require(call.numbers[t] >= 0 && call.numbers[t] < network.sizes.vocabulary, "no such token");
    require(call.slots[t] >= 0 && call.slots[t] < cache.slots, "no such slot of the KV cache");
    require(call.positions[t] >= 0 && call.positions[t] < cache.length, "the KV cache is full");
    const std::int32_t* table = cache.blocks_of(call.slots[t]);
    for (int block = 0; block <= call.positions[t] / kCacheBlock; ++block)
      require(table[block] >= 0 && table[block] < cache.blocks, "a sequence has no such block of the KV cache");
    for (int other = 0; other < t; ++other)
      require(call.slots[other] != call.slots[t], "a sequence has one new token in a step");
    require(!call.counts || (call.counts[t] >= 1 && call.counts[t] <= network.router.top_k),
            "a token uses 1 to top-k experts");
  }
  if (!call.forced_ids) return;
  std::size_t routed = 0;
  for (const StepLayer& layer : network.layers) routed += layer.routed();
  for (std::size_t i = 0; i < routed * call.tokens * network.router.top_k; ++i)
    require(call.forced_ids[i] >= -1 && call.forced_ids[i] < network.router.experts, "no such expert");
}

}  // namespace

DecodeStep::DecodeStep(std::shared_ptr<Pool> pool, Isa isa, const StepNetwork& network)
    : pool_(std::move(pool)), context_(checked_context(isa, network)) {
  const int slots = pool_->worker_slots();
  context_.experts_layer = repeated_layer(context_.experts, slots, false);
  context_.shared_layer = repeated_layer(context_.shared, slots, false);
  context_.dense_layer = repeated_layer(context_.dense, slots, false);
}

void DecodeStep::run(const StepCache& cache, const StepCall& call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  check_call(context_.network, cache, call);
  auto job = std::make_shared<StepJob>(context_, cache, call, pool_->worker_slots());
  pool_->wait(pool_->submit(job), true);
}

}  // namespace moesaic
