// Random calls of the native entry points, right and wrong: fuzz [rounds] [seed]. Every wrong call must be
// refused with a message and must leave its result alone; every right one must be computed. Buffers are as
// large as they have to be and not larger, so that a sanitizer sees an access beyond them.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <thread>

#include "api/codes.h"
#include "products/roofline.h"
#include "checks.h"
#include "small_layer.h"

namespace {

using moesaic::Isa;

class Draws {
 public:
  explicit Draws(unsigned seed) : random_(seed) {}
  int number(int from, int to) { return std::uniform_int_distribution<int>(from, to)(random_); }
  bool one_in(int count) { return number(1, count) == 1; }
  // Small numbers, limits and anything between.
  int odd_number() {
    static constexpr int kOdd[] = {0, 1, -1, 2, 3, 4, 1 << 20, (1 << 20) + 1, 1 << 30,
                                   std::numeric_limits<int>::max(), std::numeric_limits<int>::min()};
    return one_in(2) ? kOdd[number(0, 10)] : number(-5, 40);
  }
  float odd_float() {
    static const float kOdd[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 3e38f, -3e38f, 1e-45f, 1.0f};
    return kOdd[number(0, 8)];
  }
  std::vector<float> floats(std::size_t count, float size) { return normal(random_, count, size); }
  std::mt19937& random() { return random_; }

 private:
  std::mt19937 random_;
};

std::vector<Isa> supported() {
  std::vector<Isa> found;
  for (const auto& [name, isa] : moesaic::kIsas)
    if (moesaic::kernels_for(isa)) found.push_back(isa);
  return found;
}

moesaic_pool* new_pool(int workers) {
  const std::vector<std::int32_t> anywhere(workers, -1);
  return moesaic_pool_create(anywhere.data(), workers, 20.0);
}

void fuzz_pools(Draws& draw) {
  static const double kSpins[] = {0, 1, -1, NAN, INFINITY, -INFINITY, 1e300, 1e9};
  const double spin = kSpins[draw.number(0, 7)];
  std::vector<std::int32_t> cores(draw.number(0, 3));
  for (std::int32_t& core : cores) core = draw.odd_number();
  moesaic_pool* pool = moesaic_pool_create(cores.data(), int(cores.size()), spin);
  check((pool != nullptr) == (spin == 0 || spin == 1 || spin == 1e9), "a pool that spins for a possible time");
  moesaic_pool_destroy(pool);
}

void fuzz_runners(Draws& draw, moesaic_pool* pool) {
  const int dtype = draw.odd_number(), hidden = draw.odd_number(), inner = draw.odd_number();
  const int activation = draw.odd_number(), isa = draw.odd_number();
  moesaic_runner* made =
      moesaic_runner_create(pool, dtype, hidden, inner, activation, isa, draw.odd_number());
  const auto within = [](int value, int from, int to) { return value >= from && value <= to; };
  const bool right = within(dtype, 0, 2) && within(hidden, 1, 1 << 20) && within(inner, 1, 1 << 20) &&
                     within(activation, 0, 2) && within(isa, 0, 3) && moesaic::kernels_for(Isa(isa));
  check((made != nullptr) == right, "a runner is made where everything is known, and nowhere else");
  check(moesaic_block_bytes(made) > 0 == right, "only a runner has blocks");
  moesaic_runner_destroy(made);
}

// Matrices with a value that cannot be quantised, or none.
void fuzz_packing(Draws& draw, moesaic_pool* pool) {
  const int dtype = draw.number(0, 2), hidden = draw.number(1, 90), inner = draw.number(1, 90);
  const std::size_t values = std::size_t(hidden) * inner;
  moesaic_runner* runner = moesaic_runner_create(pool, dtype, hidden, inner, 0, 0, 4);
  const GuardedMemory block(moesaic_block_bytes(runner), 64);
  std::vector<float> matrix = draw.floats(values, 0.3f);
  const float odd = draw.odd_float();
  matrix[draw.number(0, int(values) - 1)] = odd;
  const int type = draw.one_in(3) ? draw.odd_number() : 0;
  const bool failed =
      moesaic_pack(runner, matrix.data(), matrix.data(), matrix.data(), type, block.as<std::uint8_t>());
  if (type < 0 || type > 2)
    check(failed, "an unknown type is refused");
  else if (type == 0)
    check(failed == (dtype != MOESAIC_BF16 && !std::isfinite(odd)), "what is not finite has no scale");
  check(block.untouched_around(), "packing stays within the block");
  if (!failed) {
    std::vector<float> gate(values), up(values), down(values);
    moesaic::unpack(moesaic::ExpertLayout(Dtype(dtype), hidden, inner), block.as<std::uint8_t>(), gate.data(),
                    up.data(), down.data());
  }
  moesaic_runner_destroy(runner);
}

// A layer that can be computed, with memory of exactly its size.
struct Layer {
  int hidden, tokens, top_k, experts;
  std::vector<float> states, weights, out;
  std::vector<std::int64_t> ids;
  std::vector<std::int32_t> listed;
  moesaic_layer call;

  Layer(Draws& draw, const Experts& packed, int hidden_)
      : hidden(hidden_), tokens(draw.number(1, draw.one_in(4) ? 70 : 6)), experts(int(packed.blocks.size())) {
    top_k = draw.number(1, experts);
    states = draw.floats(std::size_t(tokens) * hidden, 1.0f);
    weights = draw.floats(std::size_t(tokens) * top_k, 1.0f);
    if (draw.one_in(8)) states[draw.number(0, int(states.size()) - 1)] = draw.odd_float();
    for (int i = 0; i < tokens * top_k; ++i) ids.push_back(draw.number(0, experts - 1));
    for (int e = 0; e < experts; ++e) listed.push_back(e);
    std::shuffle(listed.begin(), listed.end(), draw.random());
    const int count = draw.number(0, experts);
    for (int i = 0; i < count; ++i) blocks.push_back(packed.blocks[listed[i]]);
    listed.resize(count);
    out.assign(states.size(), 7.0f);
    call = {.hidden = states.data(), .hidden_type = 0, .hidden_stride = std::size_t(hidden), .tokens = tokens,
            .top_k = top_k, .experts_total = experts, .ids = ids.data(), .weights = weights.data(),
            .count = count, .experts = listed.data(), .blocks = blocks.data(), .out = out.data(),
            .out_type = 0, .add = 0};
  }

  std::vector<const std::uint8_t*> blocks;
};

// Makes the layer wrong in one way; false: this way does not apply to it.
bool spoil(Draws& draw, Layer& layer) {
  moesaic_layer& call = layer.call;
  const auto anywhere = [&](auto& values) -> auto& { return values[draw.number(0, int(values.size()) - 1)]; };
  const bool listed = call.count > 0;
  switch (draw.number(0, 16)) {
    case 0: return call.hidden = nullptr, true;
    case 1: return call.out = nullptr, true;
    case 2: return call.ids = nullptr, true;
    case 3: return call.weights = nullptr, true;
    case 4: return call.experts = nullptr, listed;
    case 5: return call.blocks = nullptr, listed;
    case 6: return call.hidden_type = draw.one_in(2) ? -1 : 3, true;
    case 7: return call.out_type = draw.one_in(2) ? -7 : 1 << 30, true;
    case 8: return call.tokens = -draw.number(1, 1 << 30), true;
    case 9: return call.top_k = -1, true;
    case 10: return call.count = -1, true;
    case 11: return anywhere(layer.ids) = draw.one_in(2) ? -1 : std::int64_t(layer.experts) << 32, true;
    case 12: return anywhere(layer.weights) = draw.one_in(2) ? NAN : -INFINITY, true;
    case 13: return listed && (anywhere(layer.listed) = layer.experts, true);
    case 14: return listed && (anywhere(layer.blocks) += draw.number(1, 63), true);
    case 15: return call.hidden_stride = std::size_t(layer.hidden - 1), layer.tokens > 1;
    default: return call.experts_total = draw.one_in(2) ? std::numeric_limits<int>::max() : 0, true;
  }
}

void fuzz_layers(Draws& draw, moesaic_pool* pool, Isa isa) {
  const int dtype = draw.number(0, 2), hidden = draw.number(1, 150), inner = draw.number(1, 150);
  moesaic_runner* runner = moesaic_runner_create(pool, dtype, hidden, inner, draw.number(0, 2), int(isa),
                                                 draw.one_in(2) ? draw.number(0, 20) : draw.odd_number());
  const Experts packed(runner, Dtype(dtype), hidden, inner, draw.number(1, 4), draw.random());
  for (int i = 0; i < 12; ++i) {
    Layer layer(draw, packed, hidden);
    const bool wrong = draw.one_in(2) && spoil(draw, layer);
    const int failed = moesaic_submit(runner, &layer.call);
    check((failed != 0) == wrong, std::string(wrong ? "a wrong layer is refused" : "a right layer is computed: ") +
                                      (failed ? moesaic_last_error() : ""));
    check(moesaic_wait(runner, draw.number(0, 1)) == 0 && moesaic_done(runner), "waiting");
    if (wrong) check(layer.out == std::vector<float>(layer.out.size(), 7.0f), "a refused layer writes nothing");
  }
  check(packed.untouched_around(), "experts are only read");
  moesaic_runner_destroy(runner);
}

// Eight threads on one runner: each gets its own result.
void fuzz_threads(Draws& draw, moesaic_pool* pool, Isa isa) {
  const int dtype = draw.number(0, 2), hidden = draw.number(16, 80), inner = draw.number(16, 80);
  moesaic_runner* runner = moesaic_runner_create(pool, dtype, hidden, inner, 0, int(isa), 4);
  const Experts packed(runner, Dtype(dtype), hidden, inner, 3, draw.random());
  std::vector<std::unique_ptr<Layer>> layers;
  std::vector<std::vector<float>> alone;
  for (int i = 0; i < 8; ++i) {
    layers.push_back(std::make_unique<Layer>(draw, packed, hidden));
    check(!moesaic_submit(runner, &layers[i]->call) && !moesaic_wait(runner, 1), "alone");
    alone.push_back(layers[i]->out);
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&, i] {
      for (int round = 0; round < 6; ++round) {
        layers[i]->out.assign(layers[i]->out.size(), -1.0f);
        check(!moesaic_submit(runner, &layers[i]->call), "together");
        check(!moesaic_wait(runner, i % 2), "waiting together");
        check(std::memcmp(layers[i]->out.data(), alone[i].data(), alone[i].size() * 4) == 0,
              "eight threads on one runner: a result differs");
      }
    });
  for (std::thread& thread : threads) thread.join();
  moesaic_runner_destroy(runner);
}

void fuzz_routers(Draws& draw, Isa isa) {
  moesaic::RouterConfig config;
  config.experts = draw.one_in(4) ? draw.odd_number() : draw.number(1, 70);
  config.top_k = draw.one_in(4) ? draw.odd_number() : draw.number(1, 8);
  config.groups = draw.one_in(4) ? draw.odd_number() : 1;
  config.top_groups = draw.one_in(4) ? draw.odd_number() : 1;
  config.sigmoid = draw.one_in(2), config.renormalize = draw.one_in(2), config.in_fp32 = draw.one_in(2);
  config.top2_group_score = draw.one_in(2), config.round_weights = draw.one_in(2);
  try {
    moesaic::check_router(config);
  } catch (const moesaic::InvalidCall&) {
    return;
  }
  if (config.experts > 1000) return;  // right, but slow
  const int tokens = draw.number(0, 3), hidden = draw.number(1, 100);
  const std::size_t all = std::size_t(tokens) * config.experts, chosen = std::size_t(tokens) * config.top_k;
  std::vector<float> residual = draw.floats(std::size_t(tokens) * hidden, 1.0f), norm = draw.floats(hidden, 1.0f);
  std::vector<float> gate = draw.floats(std::size_t(config.experts) * hidden, 1.0f), bias(config.experts, 0.5f);
  if (draw.one_in(3)) gate[draw.number(0, int(gate.size()) - 1)] = draw.odd_float();
  if (tokens && draw.one_in(3)) residual[0] = draw.odd_float();
  std::vector<float> normalized(residual.size()), weights(chosen), scores(all), selection(all);
  std::vector<std::int64_t> ids(chosen, -1);
  moesaic::RouterCall call{.residual = residual.data(), .norm = norm.data(), .gate = gate.data(),
                           .bias = draw.one_in(2) ? bias.data() : nullptr, .type = moesaic::FloatType::f32,
                           .tokens = tokens, .hidden = hidden, .eps = 1e-6f, .normalized = normalized.data(),
                           .ids = ids.data(), .weights = weights.data(), .scores = scores.data(),
                           .selection_scores = selection.data()};
  moesaic::check_route(call);
  moesaic::route(*moesaic::kernels_for(isa), config, call);
  for (std::size_t i = 0; i < chosen; ++i)
    check(ids[i] >= 0 && ids[i] < config.experts, "a router chooses experts that exist");
  for (const float value : gate)
    for (std::size_t i = 0; std::isnan(value) && i < chosen; ++i)
      check(std::isnan(weights[i]), "with NaN in the gate no token has a weight");
  call.gate = nullptr;
  bool refused = false;
  try {
    moesaic::check_route(call);
  } catch (const moesaic::InvalidCall&) {
    refused = true;
  }
  check(refused == (tokens > 0), "a router without a gate");
}

}  // namespace

int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 200;
  const unsigned seed = count > 2 ? unsigned(std::atoi(arguments[2])) : std::random_device{}();
  const std::vector<Isa> isas = supported();
  if (isas.empty()) {
    std::printf("this CPU has no instructions for the kernels\n");
    return 2;
  }
  std::printf("fuzz %d %u\n", rounds, seed);
  for (const moesaic::Peak& peak : moesaic::peaks()) {  // every unit's instructions exist here
    moesaic::Pool pool({-1}, 0);
    pool.wait(pool.submit(moesaic::peak_job(peak, 3)), true);
    check(peak.item_ops > 0, peak.name);
  }
  Draws draw(seed);
  moesaic_pool* pools[] = {new_pool(0), new_pool(2)};
  for (int round = 0; round < rounds; ++round) {
    moesaic_pool* pool = pools[draw.number(0, 1)];
    const Isa isa = isas[draw.number(0, int(isas.size()) - 1)];
    fuzz_pools(draw);
    fuzz_runners(draw, pool);
    fuzz_packing(draw, pool);
    fuzz_layers(draw, pool, isa);
    fuzz_routers(draw, isa);
    if (round % 8 == 0) fuzz_threads(draw, pool, isa);
  }
  for (moesaic_pool* pool : pools) moesaic_pool_destroy(pool);
  std::printf("%d checks, %d failed\n", checks.load(), failures.load());
  return failures ? 1 : 0;
}
