// How long the projections of a prompt's layer take: native_linear [threads] [tokens]. Queries, keys and values
// of Qwen3-30B-A3B in one call and in three, and the output projection, for several sizes of panels and items.
// The weights of several layers take turns, as in a network; the median counts.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "linear/linear.h"
#include "products/cpu_features.h"
#include "small_layer.h"

using namespace moesaic;

namespace {

constexpr int kHidden = 2048, kQueries = 4096, kKeys = 512, kLayers = 6, kRounds = 5;
const char* const kDtypes[] = {"bf16", "int8", "int4"};

struct Projections {
  std::vector<std::unique_ptr<GuardedMemory>> memory;
  std::vector<PackedMatrix> query, key, value, output;

  Projections(LinearRunner& runner, Dtype dtype, std::mt19937& random) {
    const auto weights = normal(random, std::size_t(kQueries) * kHidden, 0.02f);
    const auto packed = [&](int outputs, int inputs) {
      const std::size_t bytes = PackedMatrix(dtype, outputs, inputs, nullptr).bytes();
      memory.push_back(std::make_unique<GuardedMemory>(bytes, 64));
      const PackedMatrix matrix(dtype, outputs, inputs, memory.back()->as<std::uint8_t>());
      runner.pack({weights.data(), FloatType::f32, std::size_t(inputs)}, matrix);
      return matrix;
    };
    for (int layer = 0; layer < kLayers; ++layer) {
      query.push_back(packed(kQueries, kHidden));
      key.push_back(packed(kKeys, kHidden));
      value.push_back(packed(kKeys, kHidden));
      output.push_back(packed(kHidden, kQueries));
    }
  }
};

template <class Layer>
double median_ms(const Layer& layer) {
  std::vector<double> taken;
  for (int round = 0; round <= kRounds; ++round)
    for (int number = 0; number < kLayers; ++number) {
      const std::int64_t began = now_ns();
      layer(number);
      if (round) taken.push_back(double(now_ns() - began) * 1e-6);
    }
  std::nth_element(taken.begin(), taken.begin() + taken.size() / 2, taken.end());
  return taken[taken.size() / 2];
}

void measure(const std::shared_ptr<Pool>& pool, Isa isa, Dtype dtype, int tokens) {
  const int tiles[3] = {4, 8, 6};  // kernels/crossover.py
  std::mt19937 random(1);
  LinearRunner packing(pool, isa, tiles[0], tiles[1], tiles[2]);
  const Projections matrices(packing, dtype, random);
  const std::vector<std::uint16_t> x(std::size_t(tokens) * kQueries, 0x3f80);
  std::vector<std::uint16_t> q(x.size()), k(std::size_t(tokens) * kKeys), v(k), o(std::size_t(tokens) * kHidden);
  const LinearCall inputs{x.data(), FloatType::bf16, kHidden, tokens};
  const LinearCall attended{x.data(), FloatType::bf16, kQueries, tokens};
  const double flops = 2e-9 * tokens * kHidden * (2 * kQueries + 2 * kKeys);
  for (const std::size_t panel : {512u << 10, 1u << 20, 2u << 20})
    for (const int strips : {4, 8, 16}) {
      LinearRunner runner(pool, isa, tiles[0], tiles[1], tiles[2], {panel, strips});
      const double together = median_ms([&](int n) {
        runner.run(inputs, {{matrices.query[n], nullptr, q.data()},
                            {matrices.key[n], nullptr, k.data()},
                            {matrices.value[n], nullptr, v.data()}});
      });
      const double apart = median_ms([&](int n) {
        runner.run(inputs, {{matrices.query[n], nullptr, q.data()}});
        runner.run(inputs, {{matrices.key[n], nullptr, k.data()}});
        runner.run(inputs, {{matrices.value[n], nullptr, v.data()}});
      });
      const double output = median_ms([&](int n) { runner.run(attended, {{matrices.output[n], nullptr, o.data()}}); });
      std::printf("%-5s panel %4zu KB, %2d strips: q k v %.2f ms (in three calls %.2f), o %.2f ms, %.1f TFLOP/s\n",
                  kDtypes[int(dtype)], panel >> 10, strips, together, apart, output, flops / (together + output));
    }
}

}  // namespace

int main(int count, char** arguments) {
  const int threads = count > 1 ? std::atoi(arguments[1]) : 1, tokens = count > 2 ? std::atoi(arguments[2]) : 512;
  const auto isas = supported_isas();
  if (isas.empty() || threads < 1 || tokens < 1) return 2;
  const auto pool = std::make_shared<Pool>(std::vector<int>(threads - 1, -1), 50000);
  std::printf("%s, %d threads, %d tokens\n", isas[0].name, threads, tokens);
  for (const Dtype dtype : {Dtype::bf16, Dtype::int4}) measure(pool, isas[0].isa, dtype, tokens);
}
