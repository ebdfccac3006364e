// Norms, rotation and routing of many rows: against double loops, and the same bits as each row alone.
#include "rows/rows.h"

#include <cmath>

#include "checks.h"
#include "small_layer.h"

using namespace moesaic;

namespace {

std::uint16_t to_half(float value) {  // bf16, to nearest even
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return std::uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
float from_half(std::uint16_t half) {
  const std::uint32_t bits = std::uint32_t(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
std::vector<std::uint16_t> halves(std::mt19937& random, std::size_t count) {
  std::vector<std::uint16_t> values;
  for (const float value : normal(random, count, 1.0f)) values.push_back(to_half(value));
  return values;
}

// The norm of one row, rounded before the weight as the kernels do.
std::vector<double> normed(const std::uint16_t* x, const std::uint16_t* weight, int width, double eps) {
  double squares = 0;
  for (int i = 0; i < width; ++i) squares += double(from_half(x[i])) * from_half(x[i]);
  const double scale = 1 / std::sqrt(squares / width + eps);
  std::vector<double> row(width);
  for (int i = 0; i < width; ++i) row[i] = from_half(x[i]) * scale * from_half(weight[i]);
  return row;
}

bool close(double got, double wanted) { return std::fabs(got - wanted) <= 2.5 * kBf16 * std::fabs(wanted) + 1e-6; }

void test_norms(RowRunner& runner, int rows, int width, std::mt19937& random) {
  const std::size_t stride = width + 5;
  const auto x = halves(random, rows * stride), added = halves(random, std::size_t(rows) * width),
             weight = halves(random, width);
  const std::size_t bytes = std::size_t(rows) * width * 2;
  GuardedMemory out(bytes, 2), sum(bytes, 2), alone(width * 2, 2), alone_sum(width * 2, 2);
  NormCall call;
  call.x = x.data(), call.weight = weight.data(), call.stride = stride, call.rows = rows, call.width = width;
  call.eps = 1e-6f, call.out = out.as<void>();
  for (const bool adding : {false, true}) {
    call.added = adding ? added.data() : nullptr, call.sum = adding ? sum.as<void>() : nullptr;
    runner.norm(call);
    bool right = true, same = true;
    for (int r = 0; r < rows; ++r) {
      std::vector<std::uint16_t> row(x.begin() + r * stride, x.begin() + r * stride + width);
      for (int i = 0; adding && i < width; ++i)
        row[i] = to_half(from_half(row[i]) + from_half(added[std::size_t(r) * width + i]));
      const std::uint16_t* got = out.as<std::uint16_t>() + std::size_t(r) * width;
      if (adding) right &= !std::memcmp(row.data(), sum.as<std::uint16_t>() + std::size_t(r) * width, width * 2);
      const std::vector<double> wanted = normed(row.data(), weight.data(), width, 1e-6);
      for (int i = 0; i < width; ++i) right &= close(from_half(got[i]), wanted[i]);
      NormCall one = call;
      one.rows = 1, one.x = x.data() + r * stride, one.out = alone.as<void>();
      if (adding) one.added = added.data() + std::size_t(r) * width, one.sum = alone_sum.as<void>();
      runner.norm(one);
      same &= !std::memcmp(alone.as<void>(), got, width * 2);
    }
    check(right, "norms of " + std::to_string(rows) + " x " + std::to_string(width));
    check(same, "a row's norm depends on the other rows");
  }
  check(out.untouched_around() && sum.untouched_around(), "nothing beyond the norms");
}

struct HeadCase {
  int tokens, heads, width, rope;
  bool interleaved, norm, whole;
};

void test_heads(RowRunner& runner, const HeadCase& c, std::mt19937& random) {
  const int all = c.heads * c.width, half = c.rope / 2;
  const auto x = halves(random, std::size_t(c.tokens) * all), weight = halves(random, c.whole ? all : c.width);
  const auto angles = normal(random, std::size_t(c.tokens) * half, 3.0f);
  std::vector<float> cos, sin;
  for (const float angle : angles) cos.push_back(std::cos(angle)), sin.push_back(std::sin(angle));
  GuardedMemory query(x.size() * 2, 2), key(x.size() * 2, 2), sums(c.tokens * 4, 4);
  std::memcpy(query.as<void>(), x.data(), x.size() * 2);
  std::memcpy(key.as<void>(), x.data(), x.size() * 2);
  const std::uint16_t* norm = c.norm ? weight.data() : nullptr;
  HeadsCall call;
  call.queries = {query.as<std::uint16_t>(), c.heads, c.width, norm, c.whole, nullptr};
  call.keys = {key.as<std::uint16_t>(), c.heads, c.width, norm, c.whole, sums.as<float>()};
  call.tokens = c.tokens, call.eps = 1e-6f, call.cos = cos.data(), call.sin = sin.data();
  call.rope_dim = c.rope, call.interleaved = c.interleaved;
  runner.heads(call);
  check(!std::memcmp(query.as<void>(), key.as<void>(), x.size() * 2), "queries are turned as keys are");
  bool right = true;
  for (int t = 0; t < c.tokens; ++t) {
    const std::size_t at = std::size_t(t) * all;
    std::vector<double> row(all);
    for (int i = 0; i < all; ++i) row[i] = from_half(x[at + i]);
    if (c.norm && c.whole) row = normed(&x[at], norm, all, 1e-6);
    double total = 0;
    for (int h = 0; h < c.heads; ++h) {
      double* head = &row[h * c.width];
      if (c.norm && !c.whole) {
        const auto each = normed(&x[at + h * c.width], norm, c.width, 1e-6);
        std::copy(each.begin(), each.end(), head);
      }
      for (int i = 0; i < half; ++i) {
        double &a = head[c.interleaved ? 2 * i : i], &b = head[c.interleaved ? 2 * i + 1 : half + i];
        const double p = a, q = b, u = cos[t * half + i], v = sin[t * half + i];
        a = p * u - q * v, b = q * u + p * v;
      }
    }
    double size = 0;
    for (int i = 0; i < all; ++i) {
      const double got = from_half(key.as<std::uint16_t>()[at + i]);
      right &= std::fabs(got - row[i]) < 0.05 * (1 + std::fabs(row[i]));
      total += got, size += std::fabs(got);
    }
    right &= std::fabs(sums.as<float>()[t] - total) <= 1e-5 * size;
  }
  check(right, "norm and rotation of heads");
  check(query.untouched_around() && key.untouched_around() && sums.untouched_around(), "nothing beyond the heads");
  key.as<std::uint16_t>()[std::size_t(c.tokens - 1) * all + 1] = 0x7f80;  // infinity
  runner.heads(call);
  check(!std::isfinite(sums.as<float>()[c.tokens - 1]) && (c.tokens < 2 || std::isfinite(sums.as<float>()[0])),
        "an infinite key shows in its token's sum");
}

struct Routed {
  std::vector<std::uint16_t> normalized;
  std::vector<std::int64_t> ids;
  std::vector<float> weights, scores, selection;

  Routed(int tokens, int hidden, const RouterConfig& config)
      : normalized(std::size_t(tokens) * hidden),
        ids(std::size_t(tokens) * config.top_k),
        weights(ids.size()),
        scores(std::size_t(tokens) * config.experts),
        selection(scores.size()) {}
  void write_to(RouterCall& call) {
    call.normalized = normalized.data(), call.ids = ids.data(), call.weights = weights.data();
    call.scores = scores.data(), call.selection_scores = selection.data();
  }
  bool operator==(const Routed&) const = default;
};

// Many tokens are routed as a few are, to the bit.
void test_routes(RowRunner& runner, const Kernels& kernels, const RouterConfig& config, int tokens, int hidden,
                 std::mt19937& random) {
  const auto residual = halves(random, std::size_t(tokens) * hidden), norm = halves(random, hidden),
             gate = halves(random, std::size_t(config.experts) * hidden);
  const auto bias = normal(random, config.experts, 0.1f);
  RouterCall call;
  call.residual = residual.data(), call.norm = norm.data(), call.gate = gate.data();
  call.bias = config.sigmoid ? bias.data() : nullptr, call.type = FloatType::bf16;
  call.tokens = tokens, call.hidden = hidden, call.eps = 1e-6f;
  Routed few(tokens, hidden, config), many = few, added = few;
  few.write_to(call);
  route(kernels, config, call);
  many.write_to(call);
  runner.route(config, call, {});
  check(many == few, "many tokens are routed as a few are");
  // Half of the stream, added to itself.
  std::vector<std::uint16_t> part = residual, sum(residual.size());
  for (std::uint16_t& value : part) value = to_half(from_half(value) / 2);
  call.residual = part.data();
  added.write_to(call);
  runner.route(config, call, {nullptr, part.data(), sum.data()});
  check(sum == residual && added == few, "what is added comes before the norm");
  std::vector<std::int64_t> counts;
  for (int t = 0; t < tokens; ++t) counts.push_back(1 + t % config.top_k);
  call.residual = residual.data();
  runner.route(config, call, {counts.data(), nullptr, nullptr});
  bool padded = true;
  for (int t = 0; t < tokens; ++t)
    for (int k = 0; k < config.top_k; ++k) {
      const std::size_t at = std::size_t(t) * config.top_k + k;
      padded &= k < counts[t] ? added.ids[at] == few.ids[at] : added.ids[at] == -1 && added.weights[at] == 0;
    }
  check(padded, "tokens that use fewer experts");
  counts[0] = config.top_k + 1;
  bool refused = false;
  try {
    runner.route(config, call, {counts.data(), nullptr, nullptr});
  } catch (const InvalidCall&) {
    refused = true;
  }
  check(refused, "more experts than top-k");
}

}  // namespace

void test_rows(const std::vector<Isa>& isas) {
  for (const int workers : {0, 2}) {
    const auto pool = std::make_shared<Pool>(std::vector<int>(workers, -1), 20000);
    for (const Isa isa : isas) {
      RowRunner runner(pool, isa);
      std::mt19937 random(6);
      for (const int rows : {1, 7, 50})
        for (const int width : {8, 64, 100}) test_norms(runner, rows, width, random);
      for (const int tokens : {1, 33}) {
        test_heads(runner, {tokens, 4, 64, 64, false, true, false}, random);
        test_heads(runner, {tokens, 3, 40, 16, false, true, true}, random);
        test_heads(runner, {tokens, 2, 24, 24, true, false, false}, random);
        RouterConfig softmax{.experts = 18, .top_k = 3, .renormalize = true};
        RouterConfig sigmoid{.experts = 24, .top_k = 4, .sigmoid = true, .in_fp32 = true, .groups = 4,
                             .top_groups = 2, .top2_group_score = true};
        for (const RouterConfig& config : {softmax, sigmoid})
          test_routes(runner, *kernels_for(isa), config, tokens, 96, random);
      }
    }
  }
}
