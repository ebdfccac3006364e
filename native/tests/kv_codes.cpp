// Codes of the KV cache: rounded as they should be, and attended to as what they stand for. Vectors whose scale is a
// power of two are codes without a rounding error, so that attention has the bits of the same vectors in bf16.
#include <algorithm>
#include <cmath>

#include "checks.h"
#include "layer/runner.h"
#include "rows/rows.h"
#include "small_layer.h"

using namespace moesaic;

namespace {

using Halves = std::vector<std::uint16_t>;
constexpr std::uint16_t kNan = 0x7fc0, kInfinity = 0x7f80;

float from_bf16(std::uint16_t half) {
  const std::uint32_t bits = std::uint32_t(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

std::uint16_t to_bf16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return std::uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float from_fp16(std::uint16_t half) {
  const int exponent = half >> 10 & 31, fraction = half & 1023;
  if (exponent == 31) return fraction ? NAN : INFINITY;
  return exponent ? std::ldexp(float(1024 + fraction), exponent - 25) : std::ldexp(float(fraction), -24);
}

void test_rounding(const Kernels& kernels, std::mt19937& random) {
  for (const int width : {4, 32, 100, 128, 576})
    for (const float size : {1e-9f, 1e-5f, 1e-2f, 1.0f, 3e4f}) {
      Halves values;
      for (const float value : normal(random, width, size)) values.push_back(to_bf16(value));
      std::vector<std::int8_t> codes(width + 1, 77);
      const std::uint16_t bits = kernels.attention->round_codes(values.data(), width, codes.data());
      const float scale = from_fp16(bits);
      float largest = 0, worst = 0;
      int top = 0;
      for (int i = 0; i < width; ++i) {
        largest = std::max(largest, std::fabs(from_bf16(values[i])));
        worst = std::max(worst, std::fabs(from_bf16(values[i]) - codes[i] * scale));
        top = std::max(top, std::abs(int(codes[i])));
      }
      const std::string name = "codes of " + std::to_string(width) + " values of about " + std::to_string(size);
      check(worst <= scale / 2 * 1.0001f && top <= 127, "the nearest " + name);
      check(bits && from_fp16(bits - 1) < largest / 127, "the smallest scale: " + name);
      check(codes[width] == 77, "nothing beyond the " + name);
    }
  Halves values(48, to_bf16(2.0f));
  std::vector<std::int8_t> codes(48);
  for (const std::uint16_t bad : {kNan, kInfinity, std::uint16_t(0xff80), to_bf16(1e8f)}) {
    values[37] = bad;
    const float scale = from_fp16(kernels.attention->round_codes(values.data(), 48, codes.data()));
    check(!std::isfinite(scale) && codes == std::vector<std::int8_t>(48), "a scale that is not finite");
  }
}

constexpr int kBlocks = 5;
const std::vector<std::int32_t> kTable = {4, 0, 2, 1};

// Rows of several heads, each of which is codes times a power of two of its own: in bf16, and as codes in blocks.
struct Exact {
  int heads, width;
  Halves values;  // [positions, heads, width]
  std::vector<std::int8_t> codes;
  Halves scales, in_blocks;

  Exact(int positions, int heads_, int width_, std::mt19937& random) : heads(heads_), width(width_) {
    const std::size_t rows = std::size_t(kBlocks) * kKeyBlock * heads;
    codes.assign(rows * width, 99), scales.assign(rows, 0x7e00), in_blocks.assign(rows * width, kNan);
    for (int p = 0; p < positions; ++p)
      for (int h = 0; h < heads; ++h) {
        const int exponent = -8 + int(random() % 4), top = int(random() % width);
        const std::size_t row = (std::size_t(kTable[p / kKeyBlock]) * kKeyBlock + p % kKeyBlock) * heads + h;
        for (int i = 0; i < width; ++i) {
          const int code = i == top ? 127 : int(random() % 255) - 127;
          codes[row * width + i] = std::int8_t(code);
          values.push_back(to_bf16(std::ldexp(float(code), exponent)));
          in_blocks[row * width + i] = values.back();
        }
        scales[row] = std::uint16_t((exponent + 15) << 10);
      }
  }
  const std::uint16_t* from(int position) const { return &values[std::size_t(position) * heads * width]; }
};

Halves queries_of(std::size_t count, std::mt19937& random) {
  Halves queries;
  for (const float value : normal(random, count, 0.3f)) queries.push_back(to_bf16(value));
  return queries;
}

// A prompt whose earlier tokens are in the cache; the new ones are rounded while it is read.
void test_prompts(RowRunner& runner, std::mt19937& random) {
  const AttentionShape shape{8, 2, 64, 32, 0.2f, int(random() % 2) * 100, nullptr};
  const int tokens = 1 + int(random() % 90), positions = tokens + int(random() % 130), earlier = positions - tokens;
  Exact keys(positions, 2, 64, random), values(positions, 2, 32, random);
  const Halves queries = queries_of(std::size_t(tokens) * 8 * 64, random);
  Halves wanted(std::size_t(tokens) * 8 * 32), got(wanted.size());
  AttendedSequence sequence;
  sequence.queries = queries.data(), sequence.out = wanted.data(), sequence.blocks = kTable.data();
  sequence.keys = {keys.in_blocks.data(), 128, 64}, sequence.values = {values.in_blocks.data(), 64, 32};
  sequence.tokens = tokens, sequence.positions = positions;
  runner.attend(shape, {sequence});
  const auto all_codes = keys.codes;
  const auto all_scales = values.scales;
  for (Exact* part : {&keys, &values})  // the new tokens' rows are still to be written
    for (int p = earlier; p < positions; ++p) {
      const std::size_t row = std::size_t(kTable[p / kKeyBlock]) * kKeyBlock + p % kKeyBlock;
      std::fill_n(&part->codes[row * 2 * part->width], 2 * part->width, std::int8_t(1));
      std::fill_n(&part->scales[row * 2], 2, std::uint16_t(0x7e00));
    }
  sequence.out = got.data();
  sequence.keys = {nullptr, 128, 64, keys.codes.data(), keys.scales.data()};
  sequence.values = {nullptr, 64, 32, values.codes.data(), values.scales.data()};
  sequence.new_keys = keys.from(earlier), sequence.new_values = values.from(earlier);
  runner.attend(shape, {sequence});
  const std::string name = std::to_string(tokens) + " of " + std::to_string(positions) + " tokens";
  check(got == wanted, "codes say what bf16 says: " + name);
  check(keys.codes == all_codes && values.scales == all_scales, "new tokens are rounded and written: " + name);
  // One scale that is not finite: rows of its head that see it are NaN, and no others change.
  const int position = earlier + int(random() % tokens), head = int(random() % 2);
  Exact& broken = random() % 2 ? keys : values;
  const std::size_t row = std::size_t(kTable[position / kKeyBlock]) * kKeyBlock + position % kKeyBlock;
  broken.scales[row * 2 + head] = 0x7e00;
  sequence.new_keys = sequence.new_values = nullptr;
  runner.attend(shape, {sequence});
  bool right = true;
  for (int t = 0; t < tokens; ++t)
    for (int h = 0; h < 8; ++h)
      for (int i = 0; i < 32; ++i) {
        const std::size_t at = (std::size_t(t) * 8 + h) * 32 + i;
        const int seen = earlier + t;
        const bool sees = h / 4 == head && seen >= position && (!shape.window || position > seen - shape.window);
        right &= sees ? std::isnan(from_bf16(got[at])) : got[at] == wanted[at];
      }
  check(right, "a scale that is not finite shows where it is seen: " + name);
}

// The function of a decode step; `latent`: keys are also values, and a second part of the key is in bf16.
void test_one_token(const Kernels& kernels, bool latent, std::mt19937& random) {
  const int heads = 1 + int(random() % 9), width = 32 + 16 * int(random() % 6), positions = 1 + int(random() % 200);
  const int first = positions > 70 ? 16 * int(random() % 4) : 0, padded = (positions - first + 15) / 16 * 16;
  const Exact keys(positions, 2, width, random), values(positions, 2, width, random);
  const Exact turning(positions, 1, 32, random);
  const std::vector<float> queries = normal(random, std::size_t(heads) * width, 0.2f),
                           turned = normal(random, std::size_t(heads) * 32, 0.2f);
  std::vector<float> found[2];
  for (const bool codes : {false, true}) {
    const std::size_t stride = 2 * width;
    const auto rows = [&](const Exact& of) {
      if (codes) return CacheRows{nullptr, of.codes.data() + width, of.scales.data() + 1, stride, 2};
      return CacheRows{of.in_blocks.data() + width, nullptr, nullptr, stride, 0};
    };
    std::vector<float> scores(std::size_t(heads + 1) * padded), out(std::size_t(heads) * (width + 2));
    AttentionCall call;
    call.parts[0] = {queries.data(), rows(keys), width};
    if (latent) call.parts[1] = {turned.data(), {turning.in_blocks.data(), nullptr, nullptr, 32, 0}, 32};
    call.values = rows(latent ? keys : values), call.value_width = width;
    call.table = kTable.data(), call.heads = heads, call.first = first, call.positions = positions - first;
    call.scale = 0.125f, call.scores = scores.data();
    call.largest = out.data(), call.sums = out.data() + heads, call.mixed = out.data() + 2 * heads;
    kernels.step->attend(call);
    found[codes] = out;
  }
  check(found[0] == found[1], "one token: codes say what bf16 says, " + std::to_string(heads) + " heads of " +
                                  std::to_string(width) + ", " + std::to_string(positions) + " positions");
}

void test_refused(RowRunner& runner, std::mt19937& random) {
  const Exact keys(3, 1, 32, random);
  const Halves queries = queries_of(32, random);
  Halves out(32);
  const auto refused = [&](auto change) {
    AttendedSequence sequence;
    sequence.queries = queries.data(), sequence.out = out.data(), sequence.blocks = kTable.data();
    sequence.tokens = 1, sequence.positions = 3;
    auto* codes = const_cast<std::int8_t*>(keys.codes.data());
    auto* scales = const_cast<std::uint16_t*>(keys.scales.data());
    sequence.keys = sequence.values = {nullptr, 32, 32, codes, scales};
    change(sequence);
    try {
      runner.attend({1, 1, 32, 32, 0.2f, 0, nullptr}, {sequence});
    } catch (const InvalidCall&) {
      return true;
    }
    return false;
  };
  auto* half = const_cast<std::uint16_t*>(keys.in_blocks.data());
  check(!refused([](auto&) {}), "a call with codes that is right");
  check(refused([](auto& sequence) { sequence.keys.scales = nullptr; }), "codes without scales");
  check(refused([&](auto& sequence) { sequence.keys.data = half; }), "keys in two precisions");
  check(refused([&](auto& sequence) { sequence.values = {half, 32, 32}; }), "keys are codes, values are not");
}

}  // namespace

void test_kv_codes(const std::vector<Isa>& isas, int cases) {
  for (const Isa isa : isas) {
    const Kernels& kernels = *kernels_for(isa);
    std::mt19937 random(3);
    test_rounding(kernels, random);
    for (int i = 0; i < 4 * cases; ++i) test_one_token(kernels, i % 2, random);
    for (const int workers : {0, 2}) {
      RowRunner runner(std::make_shared<Pool>(std::vector<int>(workers, -1), 20000), isa);
      test_refused(runner, random);
      for (int i = 0; i < cases; ++i) test_prompts(runner, random);
    }
  }
}
