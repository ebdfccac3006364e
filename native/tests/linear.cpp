// Products with packed matrices: every instruction set, precision and number of tokens, and callers that do
// not wait for each other.
#include <thread>

#include "checks.h"
#include "linear/linear.h"
#include "small_layer.h"

using namespace moesaic;

namespace {

constexpr int kTiles[3] = {4, 8, 6};  // tokens from which on tiles are used

// The fp32 results of `tokens` rows against double loops.
void test_product(LinearRunner& runner, Isa isa, Dtype dtype, int outputs, int inputs, int tokens,
                  std::mt19937& random) {
  const auto weights = normal(random, std::size_t(outputs) * inputs, 0.3f);
  const auto x = normal(random, std::size_t(tokens) * inputs, 1.0f), bias = normal(random, outputs, 1.0f);
  const PackedMatrix sizes(dtype, outputs, inputs, nullptr);
  GuardedMemory packed(sizes.bytes(), 64), result(std::size_t(tokens) * outputs * 4, 64);
  const PackedMatrix matrix(dtype, outputs, inputs, packed.as<std::uint8_t>());
  runner.pack({weights.data(), FloatType::f32, std::size_t(inputs)}, matrix);
  std::vector<float> stored(weights.size());
  unpack_rows(dtype, matrix.layout, matrix.data, 0, outputs, stored.data());
  float* out = result.as<float>();
  runner.run({x.data(), FloatType::f32, std::size_t(inputs), tokens}, {{matrix, bias.data(), out}});
  const Rounding rounding = Rounding::of(dtype, isa == Isa::amx, tokens >= kTiles[int(dtype)]);
  bool close = true;
  for (int t = 0; t < tokens; ++t) {
    const std::vector<double> row(x.begin() + t * inputs, x.begin() + (t + 1) * inputs);
    const std::vector<double> errors = rounding.squares(row);
    for (int o = 0; o < outputs; ++o) {
      const Estimate sum = product(&stored[std::size_t(o) * inputs], row, errors, rounding);
      const double off = std::fabs(out[std::size_t(t) * outputs + o] - sum.value - bias[o]);
      close &= off <= 3 * std::sqrt(sum.square) + 1e-5;
    }
  }
  check(close, "a product of " + std::to_string(tokens) + " tokens with " + std::to_string(outputs) + " x " +
                   std::to_string(inputs) + " in precision " + std::to_string(int(dtype)));
  check(packed.untouched_around() && result.untouched_around(), "nothing beyond the matrix and the result");
}

void test_concurrent_callers(const std::shared_ptr<Pool>& pool, Isa isa) {
  LinearRunner runner(pool, isa, kTiles[0], kTiles[1], kTiles[2]);
  std::mt19937 random(5);
  const auto weights = normal(random, 40 * 96, 0.3f), x = normal(random, 300 * 96, 1.0f);
  GuardedMemory packed(PackedMatrix(Dtype::bf16, 40, 96, nullptr).bytes(), 64);
  const PackedMatrix matrix(Dtype::bf16, 40, 96, packed.as<std::uint8_t>());
  runner.pack({weights.data(), FloatType::f32, 96}, matrix);
  const auto run = [&](int tokens) {
    std::vector<float> out(std::size_t(tokens) * 40);
    runner.run({x.data(), FloatType::f32, 96, tokens}, {{matrix, nullptr, out.data()}});
    return out;
  };
  std::vector<std::thread> callers;
  for (int i = 0; i < 8; ++i)
    callers.emplace_back([&, tokens = 1 + 37 * i] {
      const std::vector<float> expected = run(tokens);
      for (int round = 0; round < 20; ++round) check(run(tokens) == expected, "concurrent callers");
    });
  for (std::thread& caller : callers) caller.join();
}

// Three matrices in one call give the bits of three calls, however the tokens are cut into chunks.
void test_together(const std::shared_ptr<Pool>& pool, Isa isa, Dtype dtype, int tokens, std::mt19937& random) {
  constexpr int kInputs = 352, kOutputs[3] = {120, 17, 64};
  LinearRunner runner(pool, isa, kTiles[0], kTiles[1], kTiles[2]);
  LinearRunner small(pool, isa, kTiles[0], kTiles[1], kTiles[2], {64 * kInputs * 2, 2});
  const auto x = normal(random, std::size_t(tokens) * kInputs, 1.0f);
  const LinearCall call{x.data(), FloatType::f32, kInputs, tokens};
  std::vector<std::unique_ptr<GuardedMemory>> packed;
  std::vector<std::vector<float>> alone, together, cut;
  std::vector<LinearProduct> products, in_small_chunks;
  for (const int outputs : kOutputs) {
    packed.push_back(std::make_unique<GuardedMemory>(PackedMatrix(dtype, outputs, kInputs, nullptr).bytes(), 64));
    const PackedMatrix matrix(dtype, outputs, kInputs, packed.back()->as<std::uint8_t>());
    const auto weights = normal(random, std::size_t(outputs) * kInputs, 0.3f);
    runner.pack({weights.data(), FloatType::f32, kInputs}, matrix);
    for (auto* results : {&alone, &together, &cut}) results->emplace_back(std::size_t(tokens) * outputs);
    runner.run(call, {{matrix, nullptr, alone.back().data()}});
    products.push_back({matrix, nullptr, together.back().data()});
    in_small_chunks.push_back({matrix, nullptr, cut.back().data()});
  }
  runner.run(call, products);
  check(together == alone, "three matrices in one call");
  small.run(call, in_small_chunks);
  check(cut == alone, "a row's bits depend on its chunk");
}

void test_bad_products(LinearRunner& runner) {
  alignas(64) static std::uint8_t memory[1 << 16] = {};
  float x[64] = {}, out[64] = {};
  const LinearCall call{x, FloatType::f32, 32, 1};
  const auto refused = [&](const LinearCall& bad, const std::vector<LinearProduct>& products) {
    try {
      runner.run(bad, products);
    } catch (const InvalidCall&) {
      return true;
    }
    return false;
  };
  const LinearProduct good{PackedMatrix(Dtype::bf16, 16, 32, memory), nullptr, out};
  const LinearProduct wider{PackedMatrix(Dtype::bf16, 16, 64, memory), nullptr, out};
  const LinearProduct other{PackedMatrix(Dtype::int4, 16, 32, memory), nullptr, out};
  const LinearProduct missing{PackedMatrix(Dtype::bf16, 16, 32, memory), nullptr, nullptr};
  check(!refused(call, {good}), "a product");
  check(refused(call, {}) && refused(call, {good, wider}) && refused(call, {good, other}) &&
            refused(call, {good, missing}) && refused({nullptr, FloatType::f32, 32, 1}, {good}),
        "products that cannot be computed together");
}

}  // namespace

void test_linear(const std::vector<Isa>& isas, int cases) {
  const auto pool = std::make_shared<Pool>(std::vector<int>{-1, -1}, 20000);
  for (const Isa isa : isas) {
    LinearRunner runner(pool, isa, kTiles[0], kTiles[1], kTiles[2]);
    std::mt19937 random(4);
    for (int i = 0; i < cases; ++i) {
      const int tokens[] = {1, 2, 3, 5, 9, 16, 17, 40, 300};
      const auto draw = [&](int most) { return int(1 + random() % most); };
      test_product(runner, isa, Dtype(i % 3), draw(120), draw(600), tokens[i / 3 % 9], random);
    }
    for (int i = 0; i < cases / 9; ++i)
      for (const int tokens : {1, 33, 150, 530}) test_together(pool, isa, Dtype(i % 3), tokens, random);
    test_concurrent_callers(pool, isa);
    test_bad_products(runner);
  }
}
