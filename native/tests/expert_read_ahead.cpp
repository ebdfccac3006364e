// Experts that are read ahead: every line of a block by some worker, as much as fits, until something else is to be done;
// and layers that follow give what they give without.
#include "layer/expert_read_ahead.h"

#include <utility>

#include "checks.h"
#include "small_layer.h"

using namespace moesaic;

namespace {

using Part = ExpertReadAhead::Part;

// Strips that a layer of so many chunks gives a worker at first (memory_bound.cpp), as bytes of a block.
Part given(const ExpertLayout& layout, bool down, int chunks, int worker, int workers) {
  const int together = down ? 2 : 1, strips = down ? layout.down.strips : layout.up.strips;
  const int items = divide_up(strips, together) * chunks;
  const int first = WorkStealingRanges::split(items, worker, workers) / chunks * together;
  const int end = divide_up(WorkStealingRanges::split(items, worker + 1, workers), chunks) * together;
  const auto at = [&](int strip) {
    strip = std::min(strip, strips);
    return down ? layout.down_strip(strip) : layout.gate_strip(strip);
  };
  return {at(first), at(end)};
}

void test_parts() {
  for (const auto& [hidden, inner] : {std::pair{2048, 768}, {2048, 1408}, {72, 40}, {16, 16}})
    for (const int workers : {1, 3, 16})
      for (const bool down : {false, true}) {
        const ExpertLayout layout(Dtype::int4, hidden, inner);
        std::size_t covered = down ? layout.down_offset : 0;
        for (int worker = 0; worker < workers; ++worker) {
          const Part mine = ExpertReadAhead::part(layout, down, worker, workers);
          check(mine.begin <= covered && mine.end >= covered, "no strip is left out");
          covered = mine.end;
          for (const int chunks : {1, 2, 3, 4, 8}) {
            const Part wanted = given(layout, down, chunks, worker, workers);
            if (wanted.begin < wanted.end)
              check(mine.begin <= wanted.begin && wanted.end <= mine.end, "what the layer gives is read ahead");
          }
        }
        check(covered == (down ? layout.bytes : layout.down_offset), "up to the last strip");
      }
}

int lines_of(ExpertReadAhead& ahead, int worker) {
  int calls = 0;
  while (ahead.read_some(worker)) ++calls;
  return calls * 8;
}

void test_limit() {
  const ExpertLayout layout(Dtype::int4, 2048, 768);
  const std::vector<std::uint8_t> memory(layout.bytes);
  const std::vector<const std::uint8_t*> blocks(16, memory.data());
  const std::size_t most = l2_cache_bytes() / 4 * 3 / 64;
  ExpertReadAhead one(layout, blocks.data(), 1, 16), many(layout, blocks.data(), 16, 1);
  const auto lines = int(layout.bytes / 64);
  check(lines_of(one, 3) >= lines / 16 - 8 && lines_of(one, 4) <= lines / 16 + 8, "a sixteenth of a block");
  const int read = lines_of(many, 0);
  check(read <= int(most) && read >= int(std::min(most, 16 * layout.bytes / 64)) - 8, "no more than a cache holds");
  check(!many.read_some(0), "nothing is left");
}

void test_cancel() {
  const ExpertLayout layout(Dtype::bf16, 256, 256);
  const std::vector<std::uint8_t> memory(layout.bytes);
  const std::uint8_t* block = memory.data();
  ExpertReadAhead ahead(layout, &block, 1, 2);
  check(ahead.read_some(1), "there is more to read");
  ahead.cancel();
  check(!ahead.read_some(1) && !ahead.read_some(0), "something else is to be done");
}

// Of one token, which has parts of all experts after some were read ahead, and of two.
void test_layers_after_it(Dtype dtype, int hidden, int inner, int tokens) {
  constexpr int kExperts = 4, kWorkers = 3;
  std::mt19937 random(5);
  const std::vector<std::int32_t> anywhere(kWorkers, -1);
  moesaic_pool* pool = moesaic_pool_create(anywhere.data(), kWorkers, 100.0);
  moesaic_runner* runner =
      moesaic_runner_create(pool, int(dtype), hidden, inner, MOESAIC_SILU, MOESAIC_BEST, 0);
  const Experts experts(runner, dtype, hidden, inner, kExperts, random);
  const std::vector<float> states = normal(random, std::size_t(tokens) * hidden, 1.0f);
  const std::vector<float> weights = normal(random, tokens * 3, 1.0f);
  std::vector<std::int64_t> ids{1, 3, 0, 3, 2, 1};
  ids.resize(tokens * 3);
  const std::vector<std::int32_t> listed{0, 1, 2, 3};
  std::vector<float> expected;
  check(moesaic_read_ahead(nullptr, nullptr, 0) != 0, "no runner");
  check(moesaic_read_ahead(runner, nullptr, 1) != 0, "no blocks");
  check(!moesaic_read_some(nullptr) && !moesaic_read_some(runner), "nothing was to be read");
  for (int round = 0; round < 60; ++round) {
    std::vector<float> out(states.size(), -1.0f);
    const moesaic_layer layer = layer_of(experts, listed, states, ids, weights, tokens, out);
    check(moesaic_submit(runner, &layer) == 0, "submitting");
    check(!moesaic_read_some(runner), "reading ahead ends with a layer");
    check(moesaic_wait(runner, round % 2) == 0, "a layer");
    if (round == 0) expected = out;
    check(out == expected, "the same with and without reading ahead");
    for (int again = 0; again < round % 3; ++again)
      check(moesaic_read_ahead(runner, experts.blocks.data(), 1 + round % kExperts) == 0, "reading ahead");
    if (round % 3) check(moesaic_read_some(runner), "the caller has a part to read");
    for (int some = 0; some < round % 5; ++some) moesaic_read_some(runner);
  }
  moesaic_read_ahead(runner, experts.blocks.data(), kExperts);
  moesaic_runner_destroy(runner);  // while it reads, maybe
  moesaic_pool_destroy(pool);
}

}  // namespace

void test_expert_read_ahead() {
  test_parts();
  test_limit();
  test_cancel();
  for (const Dtype dtype : {Dtype::bf16, Dtype::int8, Dtype::int4}) {
    test_layers_after_it(dtype, 64, 48, 1);
    test_layers_after_it(dtype, 520, 1000, 1);
    test_layers_after_it(dtype, 64, 48, 2);
  }
}
