// The conductor's part between two layers of one token: what the next one may want of the CPU is read into the caches of
// its workers, which have nothing else to do while the GPU attends.
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "conductor/conductor.h"
#include "conductor/flags.h"

namespace moesaic {

// After a layer, where the brain wants it. A token that runs again has said what it wants; what the GPU's gates say of the next layer may not be
// there yet, and `read_some` looks again; else the brain predicts.
void Conductor::begin_read_ahead(int layer) {
  Brain& brain = config_.brain;
  reading_ = false, awaited_forecast_ = -1;
  if (!config_.cpu.read_ahead) return;
  const Word candidates = brain.choose_read_ahead(brain.state);
  if (!candidates) return;
  const Word* wanted = wants_.ids ? wants_.ids + std::size_t(layer + 1) * config_.top_k : nullptr;
  if (wanted && wanted[0] >= 0)
    read_ahead(layer + 1, wanted, config_.top_k);
  else if (forecast_source_.depth > 0)
    awaited_forecast_ = layer;
  else
    read_ahead(layer + 1, brain.state->ahead.read_ahead_ids.data, candidates);
}

// Again and again, until the next layer is routed: this thread is a worker, too, and reads its own part.
void Conductor::read_some() {
  if (reading_) reading_ = config_.cpu.read_some(config_.cpu.runner) != 0;
  if (awaited_forecast_ < 0 || load(config_.mailbox.forecast_ready) <= std::uint32_t(awaited_forecast_)) return;
  const Word* ids = config_.mailbox.forecast_ids +
                    std::size_t(awaited_forecast_) * config_.forecast_depth * config_.forecast_rows * config_.top_k;
  // The token may use fewer than top-k, as it does in the layer before.
  const Word* used = config_.brain.state->inputs.expert_ids.data;
  const Word count = std::count_if(used, used + config_.top_k, [](Word id) { return id >= 0; });
  read_ahead(std::exchange(awaited_forecast_, -1) + 1, ids, count);
}

// Those of so many experts that the GPU will not have, the first ones first.
void Conductor::read_ahead(int layer, const Word* ids, Word count) {
  ahead_blocks_.clear(), ahead_experts_.clear();
  const std::size_t most = std::size_t(config_.brain.state->setup.read_ahead);
  for (Word i = 0; i < count && ahead_blocks_.size() < most; ++i) {
    if (ids[i] < 0 || ids[i] >= config_.experts) continue;  // scores that are not numbers say nothing
    const int index = slots_.index(layer, int(ids[i]));
    if (slots_.slot_of(index) != kNoSlot || slots_.flight_of(index)) continue;
    const auto moves = [&](const Move& move) { return move.layer == layer && move.expert == ids[i]; };
    if (std::any_of(pending_.begin(), pending_.end(), moves)) continue;
    ahead_blocks_.push_back(reinterpret_cast<const std::uint8_t*>(host(index)));
    ahead_experts_.push_back(std::int32_t(ids[i]));
  }
  if (ahead_blocks_.empty()) return;
  const std::int32_t blocks = std::int32_t(ahead_blocks_.size());
  if (config_.cpu.read_ahead(config_.cpu.runner, ahead_blocks_.data(), blocks))
    throw std::runtime_error(config_.cpu.error());
  reading_ = true;
}

// What the CPU is given now: how much of that workers were asked to read ahead.
void Conductor::note_read_ahead() {
  if (tokens_ != 1) return;
  for (const std::int32_t expert : cpu_experts_)
    num_read_ahead_ += std::find(ahead_experts_.begin(), ahead_experts_.end(), expert) != ahead_experts_.end();
  num_cpu_experts_ += std::int64_t(cpu_experts_.size());
  ahead_experts_.clear();
}

}  // namespace moesaic
