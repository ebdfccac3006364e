// What callers may get wrong: every time a code and words, never a crash, nothing computed.
#include <cmath>
#include <cstring>
#include <string>

#include "checks.h"
#include "small_layer.h"

namespace {

void refused(bool failed, const char* words) {
  check(failed && std::strstr(moesaic_last_error(), words),
        std::string("expected a message with '") + words + "', got '" + moesaic_last_error() + "'");
}

void bad_runners(moesaic_pool* pool) {
  const auto made = [&](int dtype, int hidden, int inner, int activation, int isa) {
    moesaic_runner* runner = moesaic_runner_create(pool, dtype, hidden, inner, activation, isa, 4);
    moesaic_runner_destroy(runner);
    return runner != nullptr;
  };
  refused(!made(3, 8, 8, 0, 0), "no such precision");
  refused(!made(0, 8, 8, -1, 0), "no such precision");
  refused(!made(0, 8, 8, 0, 4), "no such precision");
  refused(!made(0, 0, 8, 0, 0), "0 x 8 cannot be computed");
  refused(!made(0, 8, -1, 0, 0), "8 x -1 cannot be computed");
  refused(!made(0, 8, 1 << 21, 0, 0), "between 1 and");
  refused(!moesaic_runner_create(nullptr, 0, 8, 8, 0, 0, 4), "needs a pool");
  refused(!moesaic_pool_create(nullptr, -1, 0.0), "a core for every worker");
  refused(!moesaic_pool_create(nullptr, 2, 0.0), "a core for every worker");
}

void bad_weights(moesaic_pool* pool) {
  for (const int dtype : {MOESAIC_BF16, MOESAIC_INT8, MOESAIC_INT4}) {
    moesaic_runner* runner = moesaic_runner_create(pool, dtype, 9, 7, 0, 0, 4);
    const Guarded block(moesaic_block_bytes(runner), 64);
    for (const float wrong : {INFINITY, -INFINITY, NAN}) {
      std::vector<float> good(63, 1.0f), bad(good);
      bad[62] = wrong;
      const bool failed = moesaic_pack(runner, good.data(), good.data(), bad.data(),
                                       MOESAIC_VALUE_F32, block.as<std::uint8_t>());
      if (dtype == MOESAIC_BF16)
        check(!failed, "bf16 keeps weights that are no numbers");
      else
        refused(failed, "the down matrix has infinities or nan");
    }
    const std::vector<float> good(63, 1.0f);
    const float* g = good.data();
    std::uint8_t* at = block.as<std::uint8_t>();
    refused(moesaic_pack(runner, g, g, g, MOESAIC_VALUE_F32, at + 32), "multiple of 64");
    refused(moesaic_pack(runner, g, g, g, 3, at), "no such kind");
    refused(moesaic_pack(runner, g, nullptr, g, 0, at), "missing");
    refused(moesaic_pack(runner, g, g, g, 0, nullptr), "missing");
    moesaic_runner_destroy(runner);
  }
}

void bad_layers(moesaic_pool* pool) {
  moesaic_runner* runner = moesaic_runner_create(pool, MOESAIC_BF16, 9, 7, 0, 0, 4);
  std::mt19937 random(1);
  const Experts experts(runner, Dtype::bf16, 9, 7, 2, random);
  const std::vector<float> hidden(18, 1.0f), weights(4, 1.0f);
  const std::vector<std::int64_t> ids{0, 1, 1, 0};
  const std::vector<std::int32_t> listed{0, 1};
  std::vector<float> out(18, 5.0f);
  const moesaic_layer good{hidden.data(), 0, 9, 2, 2, 2, ids.data(), weights.data(), 2,
                           listed.data(), experts.blocks.data(), out.data(), 0, 0};
  const auto wrong = [&](const char* words, auto change) {
    moesaic_layer layer = good;
    change(layer);
    refused(moesaic_submit(runner, &layer), words);
    check(moesaic_done(runner), "a refused layer is not under way");
  };
  const std::vector<std::int64_t> beyond{0, 1, 2, 0}, negative{0, -1, 1, 0};
  const std::vector<std::int32_t> twice{1, 1}, outside{0, 2};
  const std::vector<float> nan{1, 1, 1, NAN}, infinite{1, 1, 1, INFINITY};
  const std::vector<const std::uint8_t*> crooked{experts.blocks[0], experts.blocks[1] + 8};
  const std::vector<const std::uint8_t*> absent{experts.blocks[0], nullptr};
  wrong("asks for expert 2", [&](auto& l) { l.ids = beyond.data(); });
  wrong("asks for expert -1", [&](auto& l) { l.ids = negative.data(); });
  wrong("listed twice", [&](auto& l) { l.experts = twice.data(); });
  wrong("expert 2 is to be computed", [&](auto& l) { l.experts = outside.data(); });
  wrong("token 1 has a routing weight", [&](auto& l) { l.weights = nan.data(); });
  wrong("token 1 has a routing weight", [&](auto& l) { l.weights = infinite.data(); });
  wrong("multiple of 64", [&](auto& l) { l.blocks = crooked.data(); });
  wrong("multiple of 64", [&](auto& l) { l.blocks = absent.data(); });
  wrong("8 values apart", [&](auto& l) { l.hidden_stride = 8; });
  wrong("added to", [&](auto& l) { l.out_value = MOESAIC_VALUE_BF16, l.add = 1; });
  wrong("negative", [&](auto& l) { l.tokens = -1; });
  wrong("negative", [&](auto& l) { l.count = -1; });
  wrong("missing", [&](auto& l) { l.hidden = nullptr; });
  wrong("missing", [&](auto& l) { l.out = nullptr; });
  wrong("missing", [&](auto& l) { l.ids = nullptr; });
  wrong("missing", [&](auto& l) { l.weights = nullptr; });
  wrong("missing", [&](auto& l) { l.experts = nullptr; });
  wrong("missing", [&](auto& l) { l.blocks = nullptr; });
  wrong("no such kind", [&](auto& l) { l.hidden_value = 3; });
  wrong("no such kind", [&](auto& l) { l.out_value = -1; });
  refused(moesaic_submit(runner, nullptr), "missing");
  refused(moesaic_submit(nullptr, &good), "missing");
  refused(moesaic_wait(nullptr, 1), "missing");
  check(out == std::vector<float>(18, 5.0f), "a refused layer wrote its result");

  moesaic_layer nothing = good;
  nothing.tokens = 0;
  check(moesaic_submit(runner, &nothing) == 0 && moesaic_wait(runner, 1) == 0, "no tokens");
  check(out == std::vector<float>(18, 5.0f), "no tokens, no result");
  nothing.tokens = 2, nothing.count = 0;
  check(moesaic_submit(runner, &nothing) == 0 && moesaic_wait(runner, 1) == 0, "no experts");
  check(out == std::vector<float>(18, 0.0f), "no experts give zeros");
  check(moesaic_submit(runner, &good) == 0 && moesaic_wait(runner, 1) == 0, "all is well again");
  moesaic_runner_destroy(runner);
}

}  // namespace

void test_bad_input() {
  moesaic_pool* pool = moesaic_pool_create(nullptr, 0, 0.0);
  bad_runners(pool);
  bad_weights(pool);
  bad_layers(pool);
  moesaic_pool_destroy(pool);
}
