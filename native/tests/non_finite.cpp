// A hidden state that is no number, or beyond what products can hold: it shows in its own token and
// nowhere else.
#include <cmath>
#include <string>

#include "checks.h"
#include "layer/runner.h"
#include "small_layer.h"

namespace {

constexpr int kHidden = 70, kInner = 300, kTokens = 35, kBad = 18;

std::vector<float> computed(moesaic_runner* runner, const Experts& experts,
                            const std::vector<float>& hidden) {
  const std::vector<std::int64_t> ids(kTokens, 0);
  const std::vector<float> weights(kTokens, 1.0f);
  const std::int32_t listed = 0;
  std::vector<float> out(kTokens * kHidden, -1.0f);
  const moesaic_layer layer{hidden.data(),  0,      kHidden,       kTokens, 1,
                            1,              ids.data(), weights.data(), 1,   &listed,
                            experts.blocks.data(), out.data(), 0,    0};
  check(moesaic_submit(runner, &layer) == 0 && moesaic_wait(runner, 1) == 0, "no numbers: computing");
  return out;
}

}  // namespace

void test_no_numbers(const std::vector<moesaic::Isa>& isas) {
  std::mt19937 random(3);
  moesaic_pool* pool = moesaic_pool_create(nullptr, 0, 0.0);
  for (const moesaic::Isa isa : isas)
    for (const int dtype : {MOESAIC_BF16, MOESAIC_INT8, MOESAIC_INT4})
      for (const int tiles_from : {0, 1}) {
        moesaic_runner* runner =
            moesaic_runner_create(pool, dtype, kHidden, kInner, 0, int(isa), tiles_from);
        const Experts experts(runner, Dtype(dtype), kHidden, kInner, 1, random);
        const std::vector<float> hidden = normal(random, kTokens * kHidden, 1.0f);
        const std::vector<float> good = computed(runner, experts, hidden);
        for (const float wrong : {NAN, -NAN, INFINITY, -INFINITY, 3e38f, 1e31f}) {
          std::vector<float> damaged(hidden);
          for (int i = 0; i < 9; ++i) damaged[kBad * kHidden + 8 * i - i / 8] = wrong;
          const std::vector<float> out = computed(runner, experts, damaged);
          bool shows = true, others = true;
          for (int i = 0; i < kTokens * kHidden; ++i) {
            if (i / kHidden == kBad)
              shows &= !(std::fabs(out[i]) < 1e20f);
            else
              others &= out[i] == good[i];
          }
          const std::string where = " isa " + std::to_string(int(isa)) + " dtype " +
                                    std::to_string(dtype) + " tiles from " +
                                    std::to_string(tiles_from) + ": " + std::to_string(wrong);
          check(shows, "hidden states vanish," + where);
          check(others, "other tokens changed," + where);
        }
        moesaic_runner_destroy(runner);
      }
  moesaic_pool_destroy(pool);
}
