// A small layer through the C functions: random experts, packed, ready to be submitted.
#pragma once

#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "expected.h"
#include "guarded_memory.h"
#include "layout/pack.h"
#include "moesaic_native.h"

inline std::vector<float> normal(std::mt19937& random, std::size_t count, float size) {
  std::normal_distribution<float> draw(0.0f, size);
  std::vector<float> values(count);
  for (float& value : values) value = draw(random);
  return values;
}

// `count` experts' blocks, each at the end of guarded memory, and their weights as unpacked.
struct Experts {
  std::vector<std::unique_ptr<GuardedMemory>> memory;
  std::vector<const std::uint8_t*> blocks;
  std::vector<Weights> weights;

  Experts(moesaic_runner* runner, Dtype dtype, int hidden, int inner, int count, std::mt19937& random) {
    const std::size_t values = std::size_t(hidden) * inner;
    const moesaic::ExpertLayout layout(dtype, hidden, inner);
    for (int e = 0; e < count; ++e) {
      const auto gate = normal(random, values, 0.3f), up = normal(random, values, 0.3f),
                 down = normal(random, values, 0.3f);
      memory.push_back(std::make_unique<GuardedMemory>(moesaic_block_bytes(runner), 64));
      std::uint8_t* block = memory.back()->as<std::uint8_t>();
      if (moesaic_pack(runner, gate.data(), up.data(), down.data(), MOESAIC_FLOAT32, block)) std::abort();
      blocks.push_back(block);
      Weights stored{std::vector<float>(values), std::vector<float>(values), std::vector<float>(values)};
      moesaic::unpack(layout, block, stored.gate.data(), stored.up.data(), stored.down.data());
      weights.push_back(std::move(stored));
    }
  }

  bool untouched_around() const {
    for (const auto& one : memory)
      if (!one->untouched_around()) return false;
    return true;
  }
};

// All of the experts, numbered as `listed` says, for so many tokens in fp32. Everything given stays until it is computed.
inline moesaic_layer layer_of(const Experts& experts, const std::vector<std::int32_t>& listed,
                              const std::vector<float>& hidden, const std::vector<std::int64_t>& ids,
                              const std::vector<float>& weights, int tokens, std::vector<float>& out) {
  return {.hidden = hidden.data(),
          .hidden_type = MOESAIC_FLOAT32,
          .hidden_stride = hidden.size() / tokens,
          .tokens = tokens,
          .top_k = std::int32_t(ids.size()) / tokens,
          .experts_total = std::int32_t(listed.size()),
          .ids = ids.data(),
          .weights = weights.data(),
          .count = std::int32_t(listed.size()),
          .experts = listed.data(),
          .blocks = experts.blocks.data(),
          .out = out.data(),
          .out_type = MOESAIC_FLOAT32,
          .add = 0};
}
