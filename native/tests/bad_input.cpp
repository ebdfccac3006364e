// Invalid calls: an error code and a message every time, never a crash, nothing computed.
#include <cmath>
#include <cstring>
#include <string>

#include "checks.h"
#include "small_layer.h"

namespace {

void refused(bool failed, const char* message) {
  check(failed && std::strstr(moesaic_last_error(), message),
        std::string("expected a message with '") + message + "', got '" + moesaic_last_error() + "'");
}

void bad_runners(moesaic_pool* pool) {
  const auto made = [&](int dtype, int hidden, int inner, int activation, int isa) {
    moesaic_runner* runner = moesaic_runner_create(pool, dtype, hidden, inner, activation, isa, 4);
    moesaic_runner_destroy(runner);
    return runner != nullptr;
  };
  refused(!made(3, 8, 8, 0, 0), "no such precision");
  refused(!made(0, 8, 8, -1, 0), "no such activation: -1");
  refused(!made(0, 8, 8, 0, 8), "no such instruction set: 8");
  refused(!made(0, 0, 8, 0, 0), "0 x 8 cannot be computed");
  refused(!made(0, 8, -1, 0, 0), "8 x -1 cannot be computed");
  refused(!made(0, 8, 1 << 21, 0, 0), "between 1 and");
  refused(!moesaic_runner_create(nullptr, 0, 8, 8, 0, 0, 4), "needs a pool");
  refused(!moesaic_pool_create(nullptr, -1, 0.0), "a core for every worker");
  refused(!moesaic_pool_create(nullptr, 2, 0.0), "a core for every worker");
  for (const double spin : {-1.0, double(NAN), double(INFINITY), 1e300})
    refused(!moesaic_pool_create(nullptr, 0, spin), "0 us to a day");
  check(moesaic_block_bytes(nullptr) == 0 && moesaic_done(nullptr), "no runner has nothing to do");
}

void bad_weights(moesaic_pool* pool) {
  for (const int dtype : {MOESAIC_BF16, MOESAIC_INT8, MOESAIC_INT4}) {
    moesaic_runner* runner = moesaic_runner_create(pool, dtype, 9, 7, 0, 0, 4);
    const GuardedMemory block(moesaic_block_bytes(runner), 64);
    for (const float value : {INFINITY, -INFINITY, NAN}) {
      std::vector<float> good(63, 1.0f), bad(good);
      bad[62] = value;
      const bool failed = moesaic_pack(runner, good.data(), good.data(), bad.data(), MOESAIC_FLOAT32,
                                       block.as<std::uint8_t>());
      if (dtype == MOESAIC_BF16)
        check(!failed, "bf16 keeps weights that are not finite");
      else
        refused(failed, "the down matrix has infinities or nan");
    }
    const std::vector<float> good(63, 1.0f);
    const float* g = good.data();
    std::uint8_t* at = block.as<std::uint8_t>();
    refused(moesaic_pack(runner, g, g, g, MOESAIC_FLOAT32, at + 32), "multiple of 64");
    refused(moesaic_pack(runner, g, g, g, 3, at), "no such floating-point type");
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
  const moesaic_layer good{.hidden = hidden.data(),
                           .hidden_type = MOESAIC_FLOAT32,
                           .hidden_stride = 9,
                           .tokens = 2,
                           .top_k = 2,
                           .experts_total = 2,
                           .ids = ids.data(),
                           .weights = weights.data(),
                           .count = 2,
                           .experts = listed.data(),
                           .blocks = experts.blocks.data(),
                           .out = out.data(),
                           .out_type = MOESAIC_FLOAT32,
                           .add = 0};
  const auto rejected = [&](const char* message, auto change) {
    moesaic_layer layer = good;
    change(layer);
    refused(moesaic_submit(runner, &layer), message);
    check(moesaic_done(runner), "a rejected layer is not in flight");
  };
  const std::vector<std::int64_t> beyond{0, 1, 2, 0}, negative{0, -1, 1, 0};
  const std::vector<std::int32_t> twice{1, 1}, outside{0, 2};
  const std::vector<float> nan{1, 1, 1, NAN}, infinite{1, 1, 1, INFINITY};
  const std::vector<const std::uint8_t*> misaligned{experts.blocks[0], experts.blocks[1] + 8};
  const std::vector<const std::uint8_t*> absent{experts.blocks[0], nullptr};
  rejected("asks for expert 2", [&](auto& l) { l.ids = beyond.data(); });
  rejected("asks for expert -1", [&](auto& l) { l.ids = negative.data(); });
  rejected("listed twice", [&](auto& l) { l.experts = twice.data(); });
  rejected("expert 2 is to be computed", [&](auto& l) { l.experts = outside.data(); });
  rejected("token 1 has a routing weight", [&](auto& l) { l.weights = nan.data(); });
  rejected("token 1 has a routing weight", [&](auto& l) { l.weights = infinite.data(); });
  rejected("multiple of 64", [&](auto& l) { l.blocks = misaligned.data(); });
  rejected("multiple of 64", [&](auto& l) { l.blocks = absent.data(); });
  rejected("8 values apart", [&](auto& l) { l.hidden_stride = 8; });
  rejected("added to", [&](auto& l) { l.out_type = MOESAIC_BFLOAT16, l.add = 1; });
  rejected("negative", [&](auto& l) { l.tokens = -1; });
  rejected("negative", [&](auto& l) { l.count = -1; });
  rejected("experts; at most", [&](auto& l) { l.experts_total = 1 << 30; });
  rejected("rows", [&](auto& l) { l.tokens = 1 << 30, l.top_k = 1 << 30; });
  rejected("missing", [&](auto& l) { l.hidden = nullptr; });
  rejected("missing", [&](auto& l) { l.out = nullptr; });
  rejected("missing", [&](auto& l) { l.ids = nullptr; });
  rejected("missing", [&](auto& l) { l.weights = nullptr; });
  rejected("missing", [&](auto& l) { l.experts = nullptr; });
  rejected("missing", [&](auto& l) { l.blocks = nullptr; });
  rejected("no such floating-point type", [&](auto& l) { l.hidden_type = 3; });
  rejected("no such floating-point type", [&](auto& l) { l.out_type = -1; });
  refused(moesaic_submit(runner, nullptr), "missing");
  refused(moesaic_submit(nullptr, &good), "missing");
  refused(moesaic_wait(nullptr, 1), "missing");
  check(out == std::vector<float>(18, 5.0f), "a rejected layer wrote its result");

  moesaic_layer nothing = good;
  nothing.tokens = 0;
  check(moesaic_submit(runner, &nothing) == 0 && moesaic_wait(runner, 1) == 0, "no tokens");
  check(out == std::vector<float>(18, 5.0f), "no tokens, no result");
  nothing.tokens = 2, nothing.count = 0;
  check(moesaic_submit(runner, &nothing) == 0 && moesaic_wait(runner, 1) == 0, "no experts");
  check(out == std::vector<float>(18, 0.0f), "no experts give zeros");
  check(moesaic_submit(runner, &good) == 0 && moesaic_wait(runner, 1) == 0, "a valid call works again");
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
