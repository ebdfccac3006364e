// Random shapes, precisions, groupings and token counts against plain double loops.
#include <cstring>
#include <numeric>
#include <string>

#include "checks.h"
#include "layer/runner.h"
#include "small_layer.h"

namespace {

// Hidden states and results: fp32, bf16 or fp16.
std::size_t type_bytes(int type) { return type == MOESAIC_FLOAT32 ? 4 : 2; }

double read(const void* at, int type) {
  if (type == MOESAIC_FLOAT32) {
    float single;
    std::memcpy(&single, at, 4);
    return single;
  }
  if (type == MOESAIC_FLOAT16) {
    _Float16 half;
    std::memcpy(&half, at, 2);
    return double(half);
  }
  std::uint32_t bits = 0;
  std::memcpy(reinterpret_cast<char*>(&bits) + 2, at, 2);
  float single;
  std::memcpy(&single, &bits, 4);
  return single;
}

void write(void* at, int type, float number) {
  if (type == MOESAIC_FLOAT32) {
    std::memcpy(at, &number, 4);
  } else if (type == MOESAIC_FLOAT16) {
    const _Float16 half = _Float16(number);
    std::memcpy(at, &half, 2);
  } else {
    std::memcpy(at, reinterpret_cast<const char*>(&number) + 2, 2);
  }
}

struct Case {
  moesaic::Isa isa;
  Dtype dtype;
  Activation activation;
  int hidden, inner, tokens, top_k, experts, listed, workers, tiles_from;
  int hidden_type, out_type, stride, add;
  moesaic::LayerKind kind;

  std::string description() const {
    return "isa " + std::to_string(int(isa)) + " dtype " + std::to_string(int(dtype)) + " act " +
           std::to_string(int(activation)) + " " + std::to_string(hidden) + "x" + std::to_string(inner) +
           " tokens " + std::to_string(tokens) + " top " + std::to_string(top_k) + " of " +
           std::to_string(experts) + " tiles from " + std::to_string(tiles_from) + " workers " +
           std::to_string(workers) + " types " + std::to_string(hidden_type) + std::to_string(out_type) +
           " add " + std::to_string(add) + " kind " + std::to_string(int(kind));
  }
};

Case draw(std::mt19937& random, moesaic::Isa isa, int number) {
  static constexpr int kTokens[] = {1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 64, 255, 257, 300};
  static constexpr int kShapes[][2] = {{5, 3},   {100, 37}, {131, 77}, {48, 272},  {320, 520}, {1, 1},
                                       {64, 32}, {33, 15},  {16, 600}, {2100, 17}, {17, 2100}, {256, 256}};
  const auto uniform = [&](int from, int to) { return std::uniform_int_distribution<int>(from, to)(random); };
  Case c;
  c.isa = isa;
  c.dtype = Dtype(number % 3);
  c.activation = Activation(uniform(0, 2));
  const auto& shape = kShapes[uniform(0, 11)];
  c.hidden = uniform(0, 3) ? shape[0] : uniform(1, 200);
  c.inner = uniform(0, 3) ? shape[1] : uniform(1, 200);
  c.tokens = kTokens[uniform(0, 13)];
  while (double(c.tokens) * c.hidden * c.inner > 4e6) c.tokens = kTokens[uniform(0, 13)];
  c.experts = uniform(1, 5);
  c.top_k = uniform(1, c.experts);
  c.listed = uniform(0, 9) ? uniform(1, c.experts) : 0;
  c.workers = uniform(0, 2);
  c.tiles_from = uniform(0, 1) ? uniform(0, 1) : uniform(2, 20);
  c.hidden_type = uniform(0, 2);
  c.out_type = uniform(0, 2);
  c.add = c.out_type == MOESAIC_FLOAT32 && uniform(0, 1);
  c.stride = c.hidden + (uniform(0, 1) ? uniform(0, 9) : 0);
  c.kind = moesaic::LayerKind(uniform(0, 2));
  return c;
}

// Rounding depends on the number of tokens in a chunk.
Rounding rounding_of(const Case& c, int tokens) {
  return Rounding::of(c.dtype, c.isa == moesaic::Isa::amx, c.tiles_from > 0 && tokens >= c.tiles_from);
}

void run(const Case& c, moesaic_runner* runner, std::mt19937& random) {
  const Experts experts(runner, c.dtype, c.hidden, c.inner, c.experts, random);
  const std::size_t wide = type_bytes(c.hidden_type), out_wide = type_bytes(c.out_type);
  const std::size_t rows = std::size_t(c.tokens - 1) * c.stride + c.hidden;
  const GuardedMemory hidden(rows * wide, wide), out(std::size_t(c.tokens) * c.hidden * out_wide, out_wide);
  const auto numbers = normal(random, rows, 1.0f);
  for (std::size_t i = 0; i < rows; ++i) write(hidden.as<char>() + i * wide, c.hidden_type, numbers[i]);
  const auto before = normal(random, std::size_t(c.tokens) * c.hidden, 1.0f);
  for (std::size_t i = 0; i < before.size(); ++i) write(out.as<char>() + i * out_wide, c.out_type, before[i]);

  std::vector<std::int32_t> listed(c.experts);
  std::iota(listed.begin(), listed.end(), 0);
  std::shuffle(listed.begin(), listed.end(), random);
  std::vector<std::int64_t> ids;
  for (int t = 0; t < c.tokens; ++t) {
    std::vector<std::int32_t> order(listed);
    std::shuffle(order.begin(), order.end(), random);
    ids.insert(ids.end(), order.begin(), order.begin() + c.top_k);
  }
  const auto weights = normal(random, ids.size(), 1.0f);
  std::vector<const std::uint8_t*> blocks;
  for (int i = 0; i < c.listed; ++i) blocks.push_back(experts.blocks[listed[i]]);

  const moesaic_layer layer{.hidden = hidden.as<void>(),
                            .hidden_type = c.hidden_type,
                            .hidden_stride = std::size_t(c.stride),
                            .tokens = c.tokens,
                            .top_k = c.top_k,
                            .experts_total = c.experts,
                            .ids = ids.data(),
                            .weights = weights.data(),
                            .count = c.listed,
                            .experts = listed.data(),
                            .blocks = blocks.data(),
                            .out = out.as<void>(),
                            .out_type = c.out_type,
                            .add = c.add};
  moesaic::override_layer_kind(c.kind);
  check(moesaic_submit(runner, &layer) == 0, c.description() + ": " + moesaic_last_error());
  check(moesaic_wait(runner, 1) == 0, c.description() + ": waiting");
  moesaic::override_layer_kind(moesaic::LayerKind::automatic);
  check(hidden.untouched_around() && out.untouched_around() && experts.untouched_around(),
        c.description() + ": memory around the buffers was written");

  std::vector<Estimate> expected(before.size());
  for (std::size_t i = 0; c.add && i < before.size(); ++i) expected[i].value = before[i];
  for (int i = 0; i < c.listed; ++i) {
    int load = 0, at = 0;
    for (const std::int64_t id : ids) load += id == listed[i];
    for (std::size_t p = 0; p < ids.size(); ++p) {
      if (ids[p] != listed[i]) continue;
      const int chunk = std::min(256, load - at++ / 256 * 256);
      const std::size_t token = p / c.top_k;
      std::vector<double> x(c.hidden);
      for (int h = 0; h < c.hidden; ++h)
        x[h] = read(hidden.as<char>() + (token * c.stride + h) * wide, c.hidden_type);
      const auto part = expert(experts.weights[listed[i]], x, c.inner, c.activation, rounding_of(c, chunk));
      for (int h = 0; h < c.hidden; ++h) {
        Estimate& sum = expected[token * c.hidden + h];
        sum.value += weights[p] * part[h].value;
        sum.square += double(weights[p]) * weights[p] * part[h].square;
      }
    }
  }
  constexpr double kLast[] = {kSum, kBf16, kFp16};  // by the type of the result
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double got = read(out.as<char>() + i * out_wide, c.out_type);
    const double tolerance =
        3 * std::sqrt(expected[i].square) + kLast[c.out_type] * std::fabs(expected[i].value) + 1e-7;
    const double used = std::fabs(got - expected[i].value) / tolerance;
    worst = used <= worst ? worst : used;  // NaN counts as the worst
  }
  check(worst <= 1, c.description() + ": " + std::to_string(worst) + " times the error that rounding allows");
}

}  // namespace

void test_arithmetic(const std::vector<moesaic::Isa>& isas, int cases) {
  std::mt19937 random(20240607);
  for (int number = 0; number < cases; ++number) {
    const Case c = draw(random, isas[number / 3 % isas.size()], number);
    const std::vector<std::int32_t> cores(c.workers, -1);
    moesaic_pool* pool = moesaic_pool_create(cores.data(), c.workers, 20.0);
    moesaic_runner* runner = moesaic_runner_create(pool, int(c.dtype), c.hidden, c.inner, int(c.activation),
                                                   int(c.isa), c.tiles_from);
    run(c, runner, random);
    moesaic_runner_destroy(runner);
    moesaic_pool_destroy(pool);
  }
}
