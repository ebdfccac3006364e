// How long attention of a prompt's layer takes: native_attention [threads] [tokens] [earlier tokens]. Heads of
// Qwen3-30B-A3B (32, 4 key heads, 128 wide), of gpt-oss (64, 8, 64 wide, a window of 128) and of expanded latents
// (16 heads, keys 192, values 128). The caches of several layers take turns, as in a network; the median counts.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "rows/rows.h"

using namespace moesaic;

namespace {

constexpr int kLayers = 6, kRounds = 8;

struct Named {
  const char* name;
  AttentionShape shape;
};

double median_ms(RowRunner& runner, const AttentionShape& shape, int tokens, int earlier) {
  const std::size_t positions = tokens + earlier;
  const std::size_t keys = positions * shape.kv_heads * shape.width,
                    values = positions * shape.kv_heads * shape.value_width;
  std::vector<std::uint16_t> queries(std::size_t(tokens) * shape.heads * shape.width),
      cached(kLayers * (keys + values)), out(std::size_t(tokens) * shape.heads * shape.value_width);
  std::uint32_t state = 1;
  for (auto* part : {&queries, &cached})
    for (std::uint16_t& value : *part)
      state = state * 1664525u + 1013904223u, value = std::uint16_t(0x3e80u | (state >> 16 & 0x80ffu));
  std::vector<double> taken;
  for (int round = 0; round <= kRounds; ++round)
    for (int layer = 0; layer < kLayers; ++layer) {
      std::uint16_t* at = cached.data() + layer * (keys + values);
      AttendedSequence sequence;
      sequence.queries = queries.data(), sequence.out = out.data();
      sequence.keys = {at, std::size_t(shape.kv_heads) * shape.width, std::size_t(shape.width)};
      sequence.values = {at + keys, std::size_t(shape.kv_heads) * shape.value_width,
                         std::size_t(shape.value_width)};
      sequence.tokens = tokens, sequence.positions = int(positions);
      const std::int64_t began = now_ns();
      runner.attend(shape, {sequence});
      if (round) taken.push_back(double(now_ns() - began) * 1e-6);
    }
  std::nth_element(taken.begin(), taken.begin() + taken.size() / 2, taken.end());
  return taken[taken.size() / 2];
}

// What is not masked, by one token after the other.
double flops(const AttentionShape& shape, int tokens, int earlier) {
  double seen = 0;
  for (int t = 0; t < tokens; ++t)
    seen += shape.window ? std::min(shape.window, earlier + t + 1) : earlier + t + 1;
  return 2 * seen * shape.heads * (shape.width + shape.value_width);
}

}  // namespace

int main(int count, char** arguments) {
  const int threads = count > 1 ? std::atoi(arguments[1]) : 1, tokens = count > 2 ? std::atoi(arguments[2]) : 512,
            earlier = count > 3 ? std::atoi(arguments[3]) : 0;
  if (threads < 1 || tokens < 1 || earlier < 0) return 2;
  const auto pool = std::make_shared<Pool>(std::vector<int>(threads - 1, -1), 50000);
  std::printf("%d threads, %d new tokens after %d\n", threads, tokens, earlier);
  for (const NamedIsa& isa : supported_isas()) {
    RowRunner runner(pool, isa.isa);
    for (const auto& [name, shape] : {Named{"qwen3-30b-a3b", {32, 4, 128, 128, 0.088f, 0, nullptr}},
                                      Named{"gpt-oss, window", {64, 8, 64, 64, 0.125f, 128, nullptr}},
                                      Named{"expanded latents", {16, 16, 192, 128, 0.072f, 0, nullptr}}}) {
      const double ms = median_ms(runner, shape, tokens, earlier);
      std::printf("%-12s %-17s %8.3f ms a layer, %6.2f TFLOP/s\n", isa.name, name, ms,
                  flops(shape, tokens, earlier) * 1e-9 / ms);
    }
  }
}
