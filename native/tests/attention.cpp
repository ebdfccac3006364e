// Attention of prompts: against double loops, the same bits however prompts are cut and batched, and what is
// not finite reaches the tokens that see it, and no others.
#include <algorithm>
#include <cmath>
#include <limits>

#include "checks.h"
#include "rows/rows.h"
#include "small_layer.h"

using namespace moesaic;

namespace {

using Halves = std::vector<std::uint16_t>;
constexpr std::uint16_t kNan = 0x7fc0, kInfinity = 0x7f80;

float from_half(std::uint16_t half) {
  const std::uint32_t bits = std::uint32_t(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// Keys or values in guarded memory, heads and positions apart, NaN between them.
struct Cached {
  std::size_t stride, head_stride;
  GuardedMemory memory;

  Cached(int positions, int heads, int width, int gap, float size, std::mt19937& random)
      : stride(std::size_t(heads) * (width + gap) + gap),
        head_stride(width + gap),
        memory(((positions - 1) * stride + (heads - 1) * head_stride + width) * 2, 2) {
    std::fill_n(memory.as<std::uint16_t>(), (positions - 1) * stride + (heads - 1) * head_stride + width, kNan);
    for (int p = 0; p < positions; ++p)
      for (int h = 0; h < heads; ++h) {
        const auto values = normal(random, width, size);
        for (int i = 0; i < width; ++i) at(p, h)[i] = half_of(values[i]);
      }
  }

  static std::uint16_t half_of(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return std::uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
  std::uint16_t* at(int position, int head) const {
    return memory.as<std::uint16_t>() + position * stride + head * head_stride;
  }
  CachedHeads from(int position) const { return {at(position, 0), stride, head_stride}; }
};

struct Case {
  int tokens, earlier, first;  // first: positions that a window has left behind
  AttentionShape shape;
  bool sinks = false;
};

struct Prompt {
  const Case c;
  const AttentionShape& shape;
  std::vector<float> sinks;
  Cached queries, keys, values;
  GuardedMemory out;

  Prompt(const Case& one, std::mt19937& random)
      : c(one),
        shape(c.shape),
        sinks(normal(random, shape.heads, 1.0f)),
        queries(c.tokens, shape.heads, shape.width, 0, 1.5f, random),
        keys(c.tokens + c.earlier, shape.kv_heads, shape.width, 32, 1.0f, random),
        values(c.tokens + c.earlier, shape.kv_heads, shape.value_width, 5, 1.0f, random),
        out(std::size_t(c.tokens) * row(), 2) {}

  std::size_t row() const { return std::size_t(shape.heads) * shape.value_width * 2; }
  AttentionShape call() const {
    AttentionShape call = shape;
    call.sinks = c.sinks ? sinks.data() : nullptr;
    return call;
  }
  // The tokens [begin, end) as new ones, the others before them in the cache.
  AttendedSequence piece(int begin, int end) const {
    AttendedSequence sequence;
    sequence.queries = queries.at(begin, 0), sequence.out = out.as<std::uint16_t>() + begin * row() / 2;
    sequence.keys = keys.from(0), sequence.values = values.from(0);
    sequence.tokens = end - begin, sequence.positions = c.earlier + end, sequence.first = c.first;
    return sequence;
  }
  AttendedSequence all() const { return piece(0, c.tokens); }
  Halves results() const {
    const auto* from = out.as<std::uint16_t>();
    return Halves(from, from + c.tokens * row() / 2);
  }
  void poison() const { std::fill_n(out.as<std::uint16_t>(), c.tokens * row() / 2, std::uint16_t(0x5a5a)); }
  int first_seen(int token) const {
    return shape.window ? std::max(0, c.earlier + token - shape.window + 1) : 0;
  }
  bool sees(int token, int position) const {
    return position >= first_seen(token) && position <= c.earlier + token;
  }
};

bool row_is_right(const Prompt& prompt, int token, int head, const std::uint16_t* got) {
  const AttentionShape& shape = prompt.shape;
  const int kv_head = head / (shape.heads / shape.kv_heads), last = prompt.c.earlier + token;
  std::vector<double> scores;
  double top = prompt.c.sinks ? double(prompt.sinks[head]) : -1e300;
  for (int p = prompt.first_seen(token); p <= last; ++p) {
    double dot = 0;
    for (int i = 0; i < shape.width; ++i)
      dot += double(from_half(prompt.queries.at(token, head)[i])) * from_half(prompt.keys.at(p, kv_head)[i]);
    scores.push_back(dot * shape.scale);
    top = std::max(top, scores.back());
  }
  double sum = prompt.c.sinks ? std::exp(prompt.sinks[head] - top) : 0;
  for (double& score : scores) sum += score = std::exp(score - top);
  bool right = true;
  for (int i = 0; i < shape.value_width; ++i) {
    double wanted = 0, size = 0;
    for (int p = prompt.first_seen(token); p <= last; ++p) {
      const double part = scores[p - prompt.first_seen(token)] / sum * from_half(prompt.values.at(p, kv_head)[i]);
      wanted += part, size += std::fabs(part);
    }
    right &= std::fabs(from_half(got[i]) - wanted) <= kBf16 * (std::fabs(wanted) + size) + 1e-6;
  }
  return right;
}

std::string name_of(const Case& c) {
  const AttentionShape& s = c.shape;
  std::string name = "attention:";
  for (const int number : {c.tokens, c.earlier, c.first, s.heads, s.kv_heads, s.width, s.value_width, s.window})
    name += " " + std::to_string(number);
  return name + (c.sinks ? " sinks" : "");
}

void test_results(RowRunner& runner, const Prompt& prompt, std::mt19937& random) {
  const Case& c = prompt.c;
  prompt.poison();
  runner.attend(prompt.call(), {prompt.all()});
  const Halves whole = prompt.results();
  bool right = true;
  for (int token = 0; token < c.tokens; ++token)
    for (int head = 0; head < prompt.shape.heads; ++head)
      right &= row_is_right(prompt, token, head,
                            &whole[(std::size_t(token) * prompt.shape.heads + head) * prompt.shape.value_width]);
  check(right, name_of(c));
  check(prompt.out.untouched_around(), "nothing beyond the results of " + name_of(c));
  prompt.poison();
  const int cut = int(random() % c.tokens);
  std::vector<AttendedSequence> pieces;  // of one call: as several sequences
  if (cut) pieces.push_back(prompt.piece(0, cut));
  pieces.push_back(prompt.piece(cut, c.tokens));
  runner.attend(prompt.call(), pieces);
  check(prompt.results() == whole, "pieces have the same bits: " + name_of(c));
}

// One value that is not finite: the rows of its head that see it become NaN, the others keep their bits.
void test_non_finite(RowRunner& runner, const Prompt& prompt, std::mt19937& random) {
  const AttentionShape& shape = prompt.shape;
  prompt.poison();
  runner.attend(prompt.call(), {prompt.all()});
  const Halves good = prompt.results();
  const int position = prompt.c.earlier + int(random() % prompt.c.tokens);
  const int kv_head = int(random() % shape.kv_heads);
  for (int where = 0; where < 3; ++where)
    for (const std::uint16_t bad : {kNan, kInfinity, std::uint16_t(kInfinity | 0x8000)}) {
      const int token = position - prompt.c.earlier, group = shape.heads / shape.kv_heads;
      std::uint16_t& value = where == 0   ? prompt.queries.at(token, kv_head * group)[1]
                             : where == 1 ? prompt.keys.at(position, kv_head)[3]
                                          : prompt.values.at(position, kv_head)[shape.value_width - 1];
      const std::uint16_t kept = value;
      value = bad;
      prompt.poison();
      runner.attend(prompt.call(), {prompt.all()});
      value = kept;
      const Halves got = prompt.results();
      bool right = true;
      for (int t = 0; t < prompt.c.tokens; ++t)
        for (int h = 0; h < shape.heads; ++h) {
          const bool reached = where ? h / group == kv_head && prompt.sees(t, position)
                                     : t == token && h == kv_head * group;
          const std::size_t at = (std::size_t(t) * shape.heads + h) * shape.value_width;
          for (int i = 0; i < shape.value_width; ++i)
            right &= reached ? std::isnan(from_half(got[at + i])) : got[at + i] == good[at + i];
        }
      const char* const names[] = {"queries", "keys", "values"};
      check(right, std::string("what is not finite in ") + names[where] + ", " + name_of(prompt.c));
    }
}

// New keys and values that are not in the cache yet.
void test_written(RowRunner& runner, std::mt19937& random) {
  const AttentionShape shape{4, 2, 64, 32, 0.2f, 0, nullptr};
  const Prompt prompt({70, 9, 0, shape}, random);
  const auto copied = [&](const Cached& from, int width, int first, int count) {
    Halves rows;
    for (int p = first; p < first + count; ++p)
      for (int h = 0; h < shape.kv_heads; ++h) rows.insert(rows.end(), from.at(p, h), from.at(p, h) + width);
    return rows;
  };
  runner.attend(shape, {prompt.all()});
  const Halves wanted = prompt.results();
  const Halves keys = copied(prompt.keys, 64, 0, 79), values = copied(prompt.values, 32, 0, 79);
  Halves key_cache = keys, value_cache = values;
  std::fill(key_cache.begin() + 9 * 128, key_cache.end(), kNan);
  std::fill(value_cache.begin() + 9 * 64, value_cache.end(), kNan);
  AttendedSequence sequence = prompt.all();
  sequence.keys = {key_cache.data(), 128, 64}, sequence.values = {value_cache.data(), 64, 32};
  sequence.new_keys = &keys[9 * 128], sequence.new_values = &values[9 * 64];
  prompt.poison();
  runner.attend(shape, {sequence});
  check(key_cache == keys && value_cache == values, "new keys and values are written");
  check(prompt.results() == wanted, "new keys and values are attended to");
}

// The same in a cache of blocks, which lie in another order.
void test_blocks(RowRunner& runner, std::mt19937& random) {
  const AttentionShape shape{8, 2, 64, 32, 0.2f, 0, nullptr};
  for (const int tokens : {1, 3, 70}) {
    const int positions = 130 + tokens, earlier = positions - tokens;
    const std::vector<std::int32_t> blocks = {4, 0, 2, 1};
    const Prompt prompt({tokens, earlier, 0, shape}, random);
    runner.attend(shape, {prompt.all()});
    const Halves wanted = prompt.results();
    Halves caches[2], news[2];
    const Cached* const from[] = {&prompt.keys, &prompt.values};
    const int widths[] = {64, 32};
    for (int part = 0; part < 2; ++part) {
      const int row = 2 * widths[part];
      caches[part].assign(std::size_t(5) * kKeyBlock * row, kNan);
      for (int p = 0; p < positions; ++p)
        for (int h = 0; h < 2; ++h) {
          const std::uint16_t* at = from[part]->at(p, h);
          if (p >= earlier) news[part].insert(news[part].end(), at, at + widths[part]);
          const int to = blocks[p / kKeyBlock] * kKeyBlock + p % kKeyBlock;
          if (p < earlier) std::copy_n(at, widths[part], &caches[part][std::size_t(to) * row + h * widths[part]]);
        }
    }
    AttendedSequence sequence = prompt.all();
    sequence.keys = {caches[0].data(), 128, 64}, sequence.values = {caches[1].data(), 64, 32};
    sequence.new_keys = news[0].data(), sequence.new_values = news[1].data();
    sequence.blocks = blocks.data();
    prompt.poison();
    runner.attend(shape, {sequence});
    check(prompt.results() == wanted, "blocks in another order: " + name_of(prompt.c));
    const std::int64_t rows[] = {0, tokens, positions, reinterpret_cast<std::int64_t>(blocks.data())};
    prompt.poison();
    runner.attend_batch(shape, {sequence.queries, sequence.new_keys, sequence.new_values, sequence.keys,
                                sequence.values, sequence.out, rows, 1});
    check(prompt.results() == wanted, "a batch: " + name_of(prompt.c));
  }
}

void test_sinks_that_are_not_finite(RowRunner& runner, std::mt19937& random) {
  Prompt prompt({20, 3, 0, {2, 1, 32, 32, 0.2f, 0, nullptr}, true}, random);
  prompt.sinks[1] = -std::numeric_limits<float>::infinity();
  runner.attend(prompt.call(), {prompt.all()});
  const Halves got = prompt.results();
  check(std::isfinite(from_half(got[0])) && std::isnan(from_half(got[32])), "an infinite sink is NaN");
}

void test_refused(RowRunner& runner, std::mt19937& random) {
  const Prompt prompt({4, 0, 0, {2, 1, 32, 32, 0.2f, 0, nullptr}}, random);
  const auto refused = [&](const AttentionShape& shape, const AttendedSequence& sequence) {
    try {
      runner.attend(shape, {sequence});
    } catch (const InvalidCall&) {
      return true;
    }
    return false;
  };
  const auto with = [&](auto change) {
    AttentionShape shape = prompt.call();
    AttendedSequence sequence = prompt.all();
    change(shape, sequence);
    return refused(shape, sequence);
  };
  check(!with([](auto&, auto&) {}), "a call that is right");
  check(with([](auto& shape, auto&) { shape.width = 48; }), "a width of 48");
  check(with([](auto& shape, auto&) { shape.value_width = 288; }), "a width of 288");
  check(with([](auto& shape, auto&) { shape.heads = 3, shape.kv_heads = 2; }), "heads that cannot be grouped");
  check(with([](auto& shape, auto&) { shape.window = -1; }), "a negative window");
  check(with([](auto&, auto& sequence) { sequence.positions = 3; }), "more new tokens than tokens");
  check(with([](auto&, auto& sequence) { sequence.first = -1; }), "a negative position");
  check(with([](auto&, auto& sequence) { sequence.keys.stride = 8; }), "keys that overlap");
  check(with([](auto&, auto& sequence) { sequence.out = nullptr; }), "no results");
  check(with([](auto&, auto& sequence) { sequence.new_keys = sequence.queries; }), "new keys without values");
  runner.attend(prompt.call(), {});
}

Case random_case(std::mt19937& random) {
  const auto any = [&](std::initializer_list<int> of) { return *(of.begin() + random() % of.size()); };
  Case c{};
  c.tokens = 1 + int(random() % any({8, 40, 150})), c.earlier = any({0, 0, 1, 63, 70});
  c.first = any({0, 0, 5, 64, 190});
  const int kv_heads = any({1, 2, 3}), group = any({1, 2, 5, 8, 17});
  c.shape = {kv_heads * group, kv_heads, any({32, 64, 96, 128, 256}), any({32, 64, 128, 192, 256}),
             0.05f + 0.001f * float(random() % 100), any({0, 0, 1, 20, 64, 100}), nullptr};
  c.sinks = any({0, 1}) == 1;
  return c;
}

}  // namespace

void test_attention(const std::vector<Isa>& isas, int cases) {
  for (const int workers : {0, 2}) {
    const auto pool = std::make_shared<Pool>(std::vector<int>(workers, -1), 20000);
    for (const Isa isa : isas) {
      RowRunner runner(pool, isa);
      std::mt19937 random(9);
      test_refused(runner, random);
      test_sinks_that_are_not_finite(runner, random);
      test_written(runner, random);
      test_blocks(runner, random);
      for (int i = 0; i < cases; ++i) {
        const Prompt prompt(random_case(random), random);
        test_results(runner, prompt, random);
        if (i % 4 == 0) test_non_finite(runner, prompt, random);
      }
    }
  }
}
