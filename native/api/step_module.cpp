// Python's view of decode steps; see moesaic/machines/cpu_step/native_step.py, which checks tensors and shapes.
#include "api/module_parts.h"
#include "step/decode_step.h"

namespace {

// `StepNetwork` whose layers and rotations are appended one by one.
struct PythonNetwork : StepNetwork {
  void add_layer(const StepLayer& layer) { layers.push_back(layer); }
  void add_rope(const StepRope& rope) { ropes.push_back(rope); }
};

// `StepCache`, likewise.
struct PythonCache : StepCache {
  void add_layer(const StepLayerCache& layer) { layers.push_back(layer); }
};

void define_sizes(nb::module_& m) {
  Fields<StepSizes>(m, "StepSizes")
      .value("hidden", &StepSizes::hidden)
      .value("vocabulary", &StepSizes::vocabulary)
      .value("eps", &StepSizes::eps)
      .value("activation", &StepSizes::activation)
      .value("expert_width", &StepSizes::expert_width)
      .value("shared_width", &StepSizes::shared_width)
      .value("dense_width", &StepSizes::dense_width)
      .value("expert_dtype", &StepSizes::expert_dtype)
      .value("attention_dtype", &StepSizes::attention_dtype)
      .value("network_dtype", &StepSizes::network_dtype)
      .value("tiles_from_bf16", &StepSizes::tiles_from_bf16)
      .value("tiles_from_int8", &StepSizes::tiles_from_int8)
      .value("tiles_from_int4", &StepSizes::tiles_from_int4);
}

void define_attention(nb::module_& m) {
  Fields<StepRope>(m, "StepRope")
      .value("dim", &StepRope::dim)
      .value("interleaved", &StepRope::interleaved)
      .value("magnitude", &StepRope::magnitude)
      .address("frequencies", &StepRope::frequencies);
  Fields<StepAttention>(m, "StepAttention")
      .value("heads", &StepAttention::heads)
      .value("kv_heads", &StepAttention::kv_heads)
      .value("head_dim", &StepAttention::head_dim)
      .value("rank", &StepAttention::rank)
      .value("query_rank", &StepAttention::query_rank)
      .value("plain_dim", &StepAttention::plain_dim)
      .value("rope_key_dim", &StepAttention::rope_key_dim)
      .value("value_dim", &StepAttention::value_dim)
      .value("rope", &StepAttention::rope)
      .value("qk_norm", &StepAttention::qk_norm)
      .value("clip", &StepAttention::clip)
      .value("scale", &StepAttention::scale)
      .value("eps", &StepAttention::eps);
}

void define_network(nb::module_& m) {
  Fields<StepLayer>(m, "StepLayer")
      .value("attention", &StepLayer::attention)
      .address("attention_norm", &StepLayer::attention_norm)
      .address("feed_forward_norm", &StepLayer::feed_forward_norm)
      .value("query", &StepLayer::query)
      .value("key", &StepLayer::key)
      .value("value", &StepLayer::value)
      .value("output", &StepLayer::output)
      .address("query_bias", &StepLayer::query_bias)
      .address("key_bias", &StepLayer::key_bias)
      .address("value_bias", &StepLayer::value_bias)
      .address("output_bias", &StepLayer::output_bias)
      .address("query_norm", &StepLayer::query_norm)
      .address("key_norm", &StepLayer::key_norm)
      .value("query_down", &StepLayer::query_down)
      .address("query_down_bias", &StepLayer::query_down_bias)
      .address("expand", &StepLayer::expand)
      .address("gate", &StepLayer::gate)
      .address("gate_bias", &StepLayer::gate_bias)
      .address("experts", &StepLayer::experts)
      .address("network", &StepLayer::network)
      .address("shared_gate", &StepLayer::shared_gate);
  Fields<PythonNetwork> network(m, "StepNetwork");
  network.value("sizes", &StepNetwork::sizes)
      .value("router", &StepNetwork::router)
      .address("embedding", &StepNetwork::embedding)
      .address("norm", &StepNetwork::norm)
      .value("head", &StepNetwork::head);
  network.type().def("add_layer", &PythonNetwork::add_layer).def("add_rope", &PythonNetwork::add_rope);
}

void define_calls(nb::module_& m) {
  Fields<StepCached>(m, "StepCached")
      .address("values", &StepCached::values)
      .address("codes", &StepCached::codes)
      .address("scales", &StepCached::scales);
  Fields<StepLayerCache>(m, "StepLayerCache")
      .value("first", &StepLayerCache::first)
      .value("second", &StepLayerCache::second);
  Fields<PythonCache> cache(m, "StepCache");
  cache.address("table", &StepCache::table)
      .value("slots", &StepCache::slots)
      .value("length", &StepCache::length)
      .value("blocks", &StepCache::blocks);
  cache.type().def("add_layer", &PythonCache::add_layer);
  Fields<StepCall>(m, "StepCall")
      .value("tokens", &StepCall::tokens)
      .address("numbers", &StepCall::numbers)
      .address("slots", &StepCall::slots)
      .address("positions", &StepCall::positions)
      .address("counts", &StepCall::counts)
      .address("forced_ids", &StepCall::forced_ids)
      .address("forced_weights", &StepCall::forced_weights)
      .address("logits", &StepCall::logits)
      .address("ids", &StepCall::ids)
      .address("weights", &StepCall::weights)
      .address("scores", &StepCall::scores)
      .address("selection_scores", &StepCall::selection_scores)
      .address("times", &StepCall::times)
      .address("phase_times", &StepCall::phase_times);
}

}  // namespace

void define_step(nb::module_& m) {
  define_sizes(m);
  define_attention(m);
  define_network(m);
  define_calls(m);
  m.attr("max_step_tokens") = kMaxStepTokens;
  m.attr("cache_block") = kCacheBlock;
  m.attr("step_phases") = StepJob::phase_names();
  nb::class_<DecodeStep>(m, "DecodeStep")
      .def("__init__",
           [](DecodeStep* step, std::shared_ptr<Pool> pool, int isa, const PythonNetwork& network) {
             new (step) DecodeStep(std::move(pool), checked_isa(isa), network);
           })
      .def("run", [](DecodeStep& step, const PythonCache& cache, const StepCall& call) {
        const nb::gil_scoped_release released;
        step.run(cache, call);
      });
}
