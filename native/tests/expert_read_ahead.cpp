// Experts that are read ahead: every line of a block by some worker, as much as fits, until something else is to be done;
// and layers that follow give what they give without.
#include "layer/expert_read_ahead.h"

#include "checks.h"
#include "small_layer.h"

using namespace moesaic;

namespace {

constexpr int kLines = 8;  // that `read_some` reads

int lines_of(ExpertReadAhead& ahead, int worker) {
  int calls = 0;
  while (ahead.read_some(worker)) ++calls;
  return (calls + 1) * kLines;  // the last call reads up to as many
}

void test_parts() {
  const ExpertLayout layout(Dtype::int4, 2048, 768);
  const std::vector<std::uint8_t> memory(layout.bytes * 2);
  const std::uint8_t* blocks[2] = {memory.data(), memory.data() + layout.bytes};
  for (const int workers : {1, 3, 16}) {
    ExpertReadAhead ahead(layout, blocks, 2, workers);
    int lines = 0;
    for (int worker = 0; worker < workers; ++worker) lines += lines_of(ahead, worker);
    const std::size_t fit = l2_cache_bytes() / 4 * 3 * workers / layout.bytes;
    const std::size_t read = std::min<std::size_t>(std::max<std::size_t>(fit, 1), 2);
    check(std::size_t(lines) >= read * layout.bytes / 64, "every line of what fits is read");
    // Neighbours may both read a strip of which each needs a part.
    const std::size_t shared = 2 * read * workers * (2 * layout.up.strip_bytes + layout.down.strip_bytes);
    check(std::size_t(lines) <= (read * layout.bytes + shared) / 64 + workers * kLines, "and little more");
    check(!ahead.read_some(0), "everything was read");
  }
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

// The first round is computed before anything is read ahead, so expert by expert; the others part by part.
void test_layers_after_it(Dtype dtype, int hidden, int inner) {
  constexpr int kExperts = 4, kWorkers = 3, kTokens = 2;
  std::mt19937 random(5);
  const std::vector<std::int32_t> anywhere(kWorkers, -1);
  moesaic_pool* pool = moesaic_pool_create(anywhere.data(), kWorkers, 100.0);
  moesaic_runner* runner =
      moesaic_runner_create(pool, int(dtype), hidden, inner, MOESAIC_SILU, MOESAIC_BEST, 0);
  const Experts experts(runner, dtype, hidden, inner, kExperts, random);
  const std::vector<float> states = normal(random, std::size_t(kTokens) * hidden, 1.0f);
  const std::vector<float> weights = normal(random, kTokens * 3, 1.0f);
  const std::vector<std::int64_t> ids{1, 3, 0, 3, 2, 1};
  const std::vector<std::int32_t> listed{0, 1, 2, 3};
  std::vector<float> expected;
  check(moesaic_read_ahead(nullptr, nullptr, 0) != 0, "no runner");
  check(moesaic_read_ahead(runner, nullptr, 1) != 0, "no blocks");
  check(!moesaic_read_some(nullptr) && !moesaic_read_some(runner), "nothing was to be read");
  for (int round = 0; round < 60; ++round) {
    std::vector<float> out(states.size(), -1.0f);
    const moesaic_layer layer = {.hidden = states.data(),
                                 .hidden_type = MOESAIC_FLOAT32,
                                 .hidden_stride = std::size_t(hidden),
                                 .tokens = kTokens,
                                 .top_k = 3,
                                 .experts_total = kExperts,
                                 .ids = ids.data(),
                                 .weights = weights.data(),
                                 .count = kExperts,
                                 .experts = listed.data(),
                                 .blocks = experts.blocks.data(),
                                 .out = out.data(),
                                 .out_type = MOESAIC_FLOAT32,
                                 .add = 0};
    check(moesaic_submit(runner, &layer) == 0 && moesaic_wait(runner, round % 2) == 0, "a layer");
    if (round == 0) expected = out;
    check(out == expected, "the same with and without reading ahead");
    for (int again = 0; again < round % 3; ++again)
      check(moesaic_read_ahead(runner, experts.blocks.data(), 1 + round % kExperts) == 0, "reading ahead");
    for (int some = 0; some < round % 5; ++some) moesaic_read_some(runner);
  }
  moesaic_read_ahead(runner, experts.blocks.data(), kExperts);
  moesaic_runner_destroy(runner);  // while it reads, maybe
  moesaic_pool_destroy(pool);
}

}  // namespace

void test_expert_read_ahead() {
  test_parts();
  test_cancel();
  for (const Dtype dtype : {Dtype::bf16, Dtype::int8, Dtype::int4}) {
    test_layers_after_it(dtype, 64, 48);
    test_layers_after_it(dtype, 520, 1000);
  }
}
