// Decode steps of a small random network: a row's bits depend neither on the number of workers nor on the
// other rows of its batch nor on where its KV cache lies, in every precision, also where a step begins while
// workers still wait in the last.
#include <cstring>

#include "checks.h"
#include "linear/linear.h"
#include "small_layer.h"
#include "step/decode_step.h"

using namespace moesaic;

namespace {

constexpr int kHidden = 256, kHeads = 8, kHeadDim = 64, kVocabulary = 48;
constexpr int kExperts = 8, kTopK = 3, kWidth = 64;
constexpr int kRank = 64, kLayers = 2, kSlots = 3, kLength = 80;

class Network {
 public:
  StepNetwork network;

  // `mixed`: layers with latent and with grouped attention in turn.
  Network(const std::shared_ptr<Pool>& pool, Isa isa, Dtype dtype, bool latent, bool shared, bool mixed)
      : linear_(pool, isa, 4, 8, 6), dtype_(dtype) {
    StepSizes& sizes = network.sizes;
    sizes.hidden = kHidden, sizes.vocabulary = kVocabulary, sizes.eps = 1e-6f;
    sizes.expert_width = kWidth, sizes.shared_width = shared ? kWidth : 0;
    sizes.expert_dtype = sizes.network_dtype = sizes.attention_dtype = int(dtype);
    sizes.tiles_from_bf16 = sizes.tiles_from_int8 = sizes.tiles_from_int4 = 4;
    network.router.experts = kExperts, network.router.top_k = kTopK, network.router.renormalize = true;
    network.embedding = halves(kVocabulary * kHidden, 1.0f), network.norm = halves(kHidden, 1.0f);
    network.head = matrix(kVocabulary, kHidden);
    frequencies_ = normal(random_, kHeadDim / 2, 1.0f);
    network.ropes = {{kHeadDim, false, 1, frequencies_.data()}, {32, true, 1, frequencies_.data()}};
    const ExpertLayout layout(dtype, kHidden, kWidth);
    for (int l = 0; l < kLayers; ++l)
      network.layers.push_back(layer(pool, layout, mixed ? l % 2 == 0 : latent, shared));
  }

 private:
  StepLayer layer(const std::shared_ptr<Pool>& pool, const ExpertLayout& layout, bool latent, bool shared) {
    StepLayer made;
    StepAttention& shape = made.attention;
    shape.heads = kHeads, shape.head_dim = kHeadDim, shape.scale = 0.125f, shape.eps = 1e-6f;
    shape.kv_heads = latent ? 0 : 2, shape.qk_norm = latent ? 0 : 1, shape.rope = latent ? 1 : 0;
    if (latent) shape.rank = kRank, shape.plain_dim = shape.rope_key_dim = 32, shape.value_dim = 64;
    made.attention_norm = halves(kHidden, 1.0f), made.feed_forward_norm = halves(kHidden, 1.0f);
    made.query = matrix(kHeads * kHeadDim, kHidden), made.output = matrix(kHidden, kHeads * kHeadDim);
    made.query_norm = halves(kHeadDim, 1.0f), made.key_norm = halves(kHeadDim, 1.0f);
    made.key = matrix(latent ? kRank + 32 : 2 * kHeadDim, kHidden);
    if (latent) made.expand = halves(std::size_t(kHeads) * (32 + 64) * kRank, 0.1f);
    if (!latent) made.value = matrix(2 * kHeadDim, kHidden);
    made.gate = halves(kExperts * kHidden, 0.1f);
    tables_.emplace_back();
    for (int e = 0; e < kExperts; ++e)
      tables_.back().push_back(reinterpret_cast<std::uintptr_t>(block(pool, layout)));
    made.experts = tables_.back().data();
    if (shared) made.network = block(pool, layout);
    return made;
  }

  std::uint8_t* memory(std::size_t bytes) {
    memory_.push_back(std::make_unique<GuardedMemory>(bytes, 64));
    return memory_.back()->as<std::uint8_t>();
  }
  const std::uint16_t* halves(std::size_t count, float size) {
    auto* to = reinterpret_cast<std::uint16_t*>(memory(count * 2));
    const std::vector<float> values = normal(random_, count, size);
    for (std::size_t i = 0; i < count; ++i)  // truncated to bf16
      std::memcpy(to + i, reinterpret_cast<const char*>(&values[i]) + 2, 2);
    return to;
  }
  PackedMatrix matrix(int outputs, int inputs) {
    const auto values = normal(random_, std::size_t(outputs) * inputs, 0.1f);
    const PackedMatrix packed(dtype_, outputs, inputs,
                              memory(PackedMatrix(dtype_, outputs, inputs, nullptr).bytes()));
    linear_.pack({values.data(), FloatType::f32, std::size_t(inputs)}, packed);
    return packed;
  }
  std::uint8_t* block(const std::shared_ptr<Pool>& pool, const ExpertLayout& layout) {
    const std::size_t count = std::size_t(kHidden) * kWidth;
    const auto gate = normal(random_, count, 0.1f), up = normal(random_, count, 0.1f),
               down = normal(random_, count, 0.1f);
    std::uint8_t* to = memory(layout.bytes);
    std::atomic<int> non_finite{0};
    const MatrixView views[3] = {{gate.data(), FloatType::f32, kHidden},
                                 {up.data(), FloatType::f32, kHidden},
                                 {down.data(), FloatType::f32, kWidth}};
    pool->wait(pool->submit(pack_job(layout, views, to, &non_finite)), true);
    return to;
  }

  std::mt19937 random_{11};
  LinearRunner linear_;
  const Dtype dtype_;
  std::vector<float> frequencies_;
  std::vector<std::vector<std::uintptr_t>> tables_;
  std::vector<std::unique_ptr<GuardedMemory>> memory_;
};

// Four steps; of all, the logits of every row, then the KV cache. `scattered`: a sequence's blocks lie in no order;
// `codes`: the cache has them, but for rotary keys.
std::vector<std::uint16_t> decode(const Network& of, Isa isa, int workers, const std::vector<int>& slots,
                                  bool scattered = false, bool codes = false) {
  DecodeStep step(std::make_shared<Pool>(std::vector<int>(workers, -1), 5000), isa, of.network);
  constexpr int kBlocks = kSlots * divide_up(kLength, kCacheBlock);
  constexpr std::size_t kBlock = std::size_t(kCacheBlock) * 2 * kHeadDim, kLayer = kBlocks * kBlock;
  constexpr std::size_t kValues = kLayers * kLayer;
  std::vector<std::int32_t> table(kBlocks);
  for (int b = 0; b < kBlocks; ++b) table[b] = scattered ? (b + 1) * 5 % (kBlocks + 1) - 1 : b;
  std::vector<std::uint16_t> first(kValues, 0x3e80), second(kValues, 0x3e00), all;
  std::vector<std::uint16_t> first_scales(kValues, 0x2000), second_scales(kValues, 0x2000);  // of as many as there may be
  const int tokens = int(slots.size());
  std::vector<std::uint16_t> logits(std::size_t(tokens) * kVocabulary);
  std::vector<std::int64_t> ids(kLayers * tokens * kTopK), times(kLayers * 3);
  std::vector<float> weights(ids.size()), scores(kLayers * tokens * kExperts), selection(scores.size());
  for (int number = 0; number < 4; ++number) {
    std::vector<std::int64_t> token_numbers, token_slots, positions;
    for (const int slot : slots) {
      token_numbers.push_back((slot * 7 + number) % kVocabulary);
      token_slots.push_back(slot);
      positions.push_back(30 + 20 * slot + number);
    }
    StepCall call;
    call.tokens = tokens, call.logits = logits.data(), call.ids = ids.data(), call.times = times.data();
    call.numbers = token_numbers.data(), call.slots = token_slots.data(), call.positions = positions.data();
    call.weights = weights.data(), call.scores = scores.data(), call.selection_scores = selection.data();
    StepCache cache{{}, table.data(), kSlots, kLength, kBlocks};
    const auto kept = [&](std::vector<std::uint16_t>& values, std::vector<std::uint16_t>& scales, int l, bool as_codes) {
      std::uint16_t* at = values.data() + l * kLayer;
      if (!as_codes) return StepCached{at, nullptr, nullptr};
      return StepCached{nullptr, reinterpret_cast<std::int8_t*>(at), scales.data() + l * kLayer};
    };
    for (int l = 0; l < kLayers; ++l)
      cache.layers.push_back({kept(first, first_scales, l, codes),
                              kept(second, second_scales, l, codes && !of.network.layers[l].attention.latent())});
    step.run(cache, call);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  all.insert(all.end(), first.begin(), first.end());
  all.insert(all.end(), second.begin(), second.end());
  all.insert(all.end(), first_scales.begin(), first_scales.end());
  all.insert(all.end(), second_scales.begin(), second_scales.end());
  return all;
}

}  // namespace

void test_decode_steps(const std::vector<Isa>& isas, int rounds) {
  const auto pool = std::make_shared<Pool>(std::vector<int>{-1}, 20000);
  for (const Isa isa : isas)
    for (const Dtype dtype : {Dtype::bf16, Dtype::int8, Dtype::int4})
      for (const int kind : {0, 1, 2, 3}) {  // grouped queries; with shared experts; latent attention; both
        const Network network(pool, isa, dtype, kind == 2, kind == 1, kind == 3);
        const bool codes = dtype != Dtype::bf16;
        const std::string name = "precision " + std::to_string(int(dtype)) + " kind " + std::to_string(kind);
        const auto alone = decode(network, isa, 0, {1}, false, codes),
                   together = decode(network, isa, 0, {0, 1, 2}, false, codes);
        for (int row = 0; row < 4; ++row)
          check(std::equal(alone.begin() + row * kVocabulary, alone.begin() + (row + 1) * kVocabulary,
                           together.begin() + (3 * row + 1) * kVocabulary),
                "a row's bits depend on its batch: " + name);
        const auto scattered = decode(network, isa, 2, {0, 1, 2}, true, codes);
        check(std::equal(together.begin(), together.begin() + 12 * kVocabulary, scattered.begin()),
              "a row's bits depend on where its blocks lie: " + name);
        for (int round = 0; round < rounds; ++round)
          for (const int workers : {1, 3, 6}) {
            check(decode(network, isa, workers, {1}, false, codes) == alone, "one token's bits depend on workers: " + name);
            check(decode(network, isa, workers, {0, 1, 2}, false, codes) == together,
                  "a batch's bits depend on workers: " + name);
          }
      }
}
