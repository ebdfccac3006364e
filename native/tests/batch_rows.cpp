// A token's result beside others and alone. The products in vectors sum in one order for every number of
// tokens, so that the bits are the same as long as the layer is memory bound; in tiles they may differ, which is
// what the engine's batch-invariant mode is for.
#include <cstring>
#include <string>

#include "checks.h"
#include "layer/runner.h"
#include "small_layer.h"

namespace {

void batch_rows(moesaic_pool* pool, moesaic::Isa isa, Dtype dtype, int hidden_size, std::mt19937& random) {
  constexpr int kInner = 40, kExperts = 6, kTopK = 3;
  const auto uniform = [&](int from, int to) { return std::uniform_int_distribution<int>(from, to)(random); };
  moesaic_runner* runner = moesaic_runner_create(pool, int(dtype), hidden_size, kInner, MOESAIC_SILU, int(isa), 0);
  const Experts experts(runner, dtype, hidden_size, kInner, kExperts, random);
  const int tokens = uniform(2, 30);
  const auto hidden = normal(random, std::size_t(tokens) * hidden_size, 1.0f);
  const auto weights = normal(random, std::size_t(tokens) * kTopK, 1.0f);
  std::vector<std::int64_t> ids;
  for (int t = 0; t < tokens; ++t)
    for (int k = 0, first = uniform(0, 1); k < kTopK; ++k) ids.push_back((first + 2 * k + uniform(0, 1)) % kExperts);
  const std::vector<std::int32_t> listed{0, 1, 2, 3, 4, 5};
  std::vector<float> together(hidden.size()), alone(hidden_size);
  moesaic_layer call{.hidden = hidden.data(), .hidden_type = 0, .hidden_stride = std::size_t(hidden_size), .tokens = tokens,
                     .top_k = kTopK, .experts_total = kExperts, .ids = ids.data(), .weights = weights.data(),
                     .count = kExperts, .experts = listed.data(), .blocks = experts.blocks.data(),
                     .out = together.data(), .out_type = 0, .add = 0};
  check(!moesaic_submit(runner, &call) && !moesaic_wait(runner, 1), "a batch");
  for (int t = 0; t < tokens; ++t) {
    moesaic_layer one = call;
    one.tokens = 1, one.out = alone.data();
    one.hidden = hidden.data() + std::size_t(t) * hidden_size;
    one.ids = ids.data() + std::size_t(t) * kTopK, one.weights = weights.data() + std::size_t(t) * kTopK;
    check(!moesaic_submit(runner, &one) && !moesaic_wait(runner, 1), "a token alone");
    check(!std::memcmp(alone.data(), together.data() + std::size_t(t) * hidden_size, hidden_size * 4),
          "a token's bits depend on its batch: isa " + std::to_string(int(isa)) + " dtype " +
              std::to_string(int(dtype)));
  }
  moesaic_runner_destroy(runner);
}

}  // namespace

void test_batch_rows(const std::vector<moesaic::Isa>& isas, int rounds) {
  std::mt19937 random(3);
  const std::vector<std::int32_t> anywhere{-1, -1};
  moesaic_pool* pool = moesaic_pool_create(anywhere.data(), 2, 0.0);
  for (const moesaic::Isa isa : isas) {
    for (int round = 0; round < rounds; ++round)
      for (const Dtype dtype : {Dtype::bf16, Dtype::int8, Dtype::int4})
        batch_rows(pool, isa, dtype, round % 5 ? 72 : 1400, random);  // 1400: in several read streams
  }
  moesaic_pool_destroy(pool);
}
