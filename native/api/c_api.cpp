// The C functions of moesaic_native.h: checks arguments, turns exceptions into error codes.
#include <string>

#include "api/codes.h"
#include "moesaic_native.h"

using namespace moesaic;

struct moesaic_pool {
  std::shared_ptr<Pool> pool;
};
struct moesaic_runner {
  Runner runner;
};

namespace {

thread_local std::string last_error;

// Calls `function`; an exception becomes `failure` and the thread's last error.
template <class Function>
auto guarded(decltype(std::declval<Function>()()) failure, Function function) noexcept
    -> decltype(function()) {
  try {
    return function();
  } catch (const std::exception& error) {
    last_error = error.what();
  } catch (...) {
    last_error = "an unknown failure";
  }
  return failure;
}

}  // namespace

const char* moesaic_last_error(void) { return last_error.c_str(); }

int moesaic_best_isa(void) {
  for (const NamedIsa& each : supported_isas())
    if (each.isa != Isa::portable) return int(each.isa);
  return -1;
}

moesaic_pool* moesaic_pool_create(const int32_t* cores, int32_t count, double spin_us) {
  return guarded(static_cast<moesaic_pool*>(nullptr), [&] {
    require(count >= 0 && (cores || !count), "a pool needs a core for every worker");
    const std::vector<int> list(cores, cores + count);
    return new moesaic_pool{std::make_shared<Pool>(list, checked_spin_ns(spin_us))};
  });
}

void moesaic_pool_destroy(moesaic_pool* pool) { delete pool; }

moesaic_runner* moesaic_runner_create(moesaic_pool* pool, int32_t dtype, int32_t hidden, int32_t intermediate,
                                      int32_t activation, int32_t isa, int32_t tiles_from) {
  return guarded(static_cast<moesaic_runner*>(nullptr), [&] {
    require(pool, "a runner needs a pool");
    return new moesaic_runner{{pool->pool, checked_dtype(dtype), hidden, intermediate,
                               checked_activation(activation), checked_isa(isa), tiles_from}};
  });
}

void moesaic_runner_destroy(moesaic_runner* runner) { delete runner; }

size_t moesaic_block_bytes(const moesaic_runner* runner) {
  return runner ? runner->runner.config().layout.bytes : 0;
}

int moesaic_pack(moesaic_runner* runner, const void* gate, const void* up, const void* down, int32_t type,
                 uint8_t* block) {
  return guarded(1, [&] {
    require(runner && gate && up && down && block, "a runner, a matrix or a block is missing");
    const ExpertLayout& layout = runner->runner.config().layout;
    const std::size_t hidden = layout.hidden, inner = layout.intermediate;
    const FloatType as = checked_type(type);
    runner->runner.pack({{gate, as, hidden}, {up, as, hidden}, {down, as, inner}}, block);
    return 0;
  });
}

int moesaic_submit(moesaic_runner* runner, const moesaic_layer* layer) {
  return guarded(1, [&] {
    require(runner && layer, "a runner or a layer is missing");
    LayerCall call;
    call.hidden = layer->hidden;
    call.hidden_type = checked_type(layer->hidden_type);
    call.hidden_stride = layer->hidden_stride;
    call.tokens = layer->tokens;
    call.top_k = layer->top_k;
    call.experts_total = layer->experts_total;
    call.ids = layer->ids;
    call.weights = layer->weights;
    call.count = layer->count;
    call.experts = layer->experts;
    call.blocks = layer->blocks;
    call.out = layer->out;
    call.out_type = checked_type(layer->out_type);
    call.add = layer->add != 0;
    call.done_flag = layer->done_flag;
    call.done_value = layer->done_value;
    call.done_ns = layer->done_ns;
    call.strict = !layer->any_weights;
    runner->runner.submit(call);
    return 0;
  });
}

int moesaic_done(const moesaic_runner* runner) { return !runner || runner->runner.done(); }

int moesaic_read_ahead(moesaic_runner* runner, const uint8_t* const* blocks, int32_t count) {
  return guarded(1, [&] {
    require(runner && (blocks || !count) && count >= 0, "a runner or blocks are missing");
    runner->runner.read_ahead(blocks, count);
    return 0;
  });
}

int moesaic_read_some(moesaic_runner* runner) { return runner && runner->runner.read_some(); }

int moesaic_wait(moesaic_runner* runner, int32_t help) {
  return guarded(1, [&] {
    require(runner, "a runner is missing");
    runner->runner.wait(help != 0);
    return 0;
  });
}
