// A hidden state that is NaN, infinite or too large for a product shows in the result of its own token and in
// no other.
#include <cmath>
#include <string>

#include "checks.h"
#include "layer/runner.h"
#include "small_layer.h"

namespace {

constexpr int kHidden = 70, kInner = 300, kTokens = 35, kBad = 18;

std::vector<float> computed(moesaic_runner* runner, const Experts& experts,
                            const std::vector<float>& hidden, float weight = 1.0f) {
  const std::vector<std::int64_t> ids(kTokens, 0);
  std::vector<float> weights(kTokens, 1.0f);
  weights[kBad] = weight;
  const std::int32_t listed = 0;
  std::vector<float> out(kTokens * kHidden, -1.0f);
  moesaic_layer layer{.hidden = hidden.data(),
                            .hidden_type = MOESAIC_FLOAT32,
                            .hidden_stride = kHidden,
                            .tokens = kTokens,
                            .top_k = 1,
                            .experts_total = 1,
                            .ids = ids.data(),
                            .weights = weights.data(),
                            .count = 1,
                            .experts = &listed,
                            .blocks = experts.blocks.data(),
                            .out = out.data(),
                            .out_type = MOESAIC_FLOAT32,
                            .add = 0};
  if (!std::isfinite(weight)) {
    check(moesaic_submit(runner, &layer) != 0, "non-finite: a weight that is not a number is not refused");
    layer.any_weights = 1;
  }
  check(moesaic_submit(runner, &layer) == 0 && moesaic_wait(runner, 1) == 0, "non-finite: computing");
  return out;
}

}  // namespace

void test_non_finite(const std::vector<moesaic::Isa>& isas) {
  std::mt19937 random(3);
  moesaic_pool* pool = moesaic_pool_create(nullptr, 0, 0.0);
  for (const moesaic::Isa isa : isas)
    for (const int dtype : {MOESAIC_BF16, MOESAIC_INT8, MOESAIC_INT4})
      for (const int tiles_from : {0, 1}) {
        moesaic_runner* runner = moesaic_runner_create(pool, dtype, kHidden, kInner, 0, int(isa), tiles_from);
        const Experts experts(runner, Dtype(dtype), kHidden, kInner, 1, random);
        const std::vector<float> hidden = normal(random, kTokens * kHidden, 1.0f);
        const std::vector<float> good = computed(runner, experts, hidden);
        for (const float bad : {NAN, -NAN, INFINITY, -INFINITY, 3e38f, 1e31f}) {
          std::vector<float> changed(hidden);
          for (int i = 0; i < 9; ++i) changed[kBad * kHidden + 8 * i - i / 8] = bad;
          const std::vector<float> out = computed(runner, experts, changed);
          bool shows = true, others = true;
          for (int i = 0; i < kTokens * kHidden; ++i) {
            if (i / kHidden == kBad)
              shows &= !(std::fabs(out[i]) < 1e20f);
            else
              others &= out[i] == good[i];
          }
          const std::string where = " isa " + std::to_string(int(isa)) + " dtype " + std::to_string(dtype) +
                                    " tiles from " + std::to_string(tiles_from) + ": " + std::to_string(bad);
          check(shows, "hidden states vanish," + where);
          check(others, "other tokens changed," + where);
        }
        const std::vector<float> weighted = computed(runner, experts, hidden, NAN);
        for (int i = 0; i < kTokens * kHidden; ++i)
          check(i / kHidden == kBad ? std::isnan(weighted[i]) : weighted[i] == good[i],
                "a weight that is not a number is seen in its own token, and nowhere else");
        moesaic_runner_destroy(runner);
      }
  moesaic_pool_destroy(pool);
}
