// The conductor's part of a layer after its experts were submitted: what to move in idle link time, with what the gates
// of later layers said.
#include <algorithm>

#include "conductor/clock.h"
#include "conductor/conductor.h"
#include "conductor/flags.h"

namespace moesaic {
namespace {

constexpr std::int64_t kPatienceNs = 50'000;  // at most: CPU workers miss a thread meanwhile
constexpr std::int64_t kLeastPatienceNs = 1'000;

}  // namespace

void Conductor::look_ahead(int layer, LayerTimes& times) {
  if (tokens_ > config_.look_ahead_to) return;
  const Word space = brain::kFlightCapacity - Word(slots_.flights().size());  // the brain sees no more of them
  const Word count = std::min(find_moves(layer), std::max<Word>(space, 0));
  const Word* moves = config_.brain.state->ahead.background.data;
  for (Word i = 0; i < count; ++i)
    pending_.push_back(*reinterpret_cast<const Move*>(moves + i * brain::kMoveWords));
  start_background();
  times.background = std::int32_t(count);
  if (config_.records) decisions_.back().background.assign(moves, moves + count * brain::kMoveWords);
}

// How many moves the brain has found. It is given forecasts where there is time for moves; where they do not come in
// time it is not asked: it has learned no predictions that could stand in for them. Forecasts are not waited for where
// every token runs again, or where the brain does not want them in this step.
Word Conductor::find_moves(int layer) {
  Brain& brain = config_.brain;
  const int depth = std::min({forecast_source_.depth, config_.layers - layer - 1, int(brain.state->setup.lookahead)});
  if (depth <= 0 && !wants_.ids) return brain.look_ahead(brain.state);
  brain.state->forecasts.from_body = depth > 0;
  const Word most = brain.begin_look_ahead(brain.state);
  if (most < 0) return 0;
  if (most > 0) {
    const bool from_gpu = depth > 0 && !wants_.whole && !brain.state->ahead.resting;
    if (from_gpu && !await_forecasts(layer)) return 0;
    fill_forecasts(layer, from_gpu ? depth : 0);
  }
  return brain.finish_look_ahead(brain.state);
}

// The GPU computes them beside its experts. If they come late again and again, little time is lost on waiting.
bool Conductor::await_forecasts(int layer) {
  const std::uint32_t wanted = std::uint32_t(layer) + 1;
  const std::int64_t deadline = now() + patience_ns_;
  while (load(config_.mailbox.forecast_ready) < wanted) {
    relax();
    if (now() < deadline) continue;
    patience_ns_ = std::max(patience_ns_ / 2, kLeastPatienceNs);
    ++forecasts_late_;
    return false;
  }
  patience_ns_ = std::min(patience_ns_ * 2, kPatienceNs);
  ++forecasts_in_time_;
  return true;
}

// The GPU's of `depth` later layers, and over them what tokens that run again wanted of the nearest ones.
void Conductor::fill_forecasts(int layer, int depth) {
  Brain& brain = config_.brain;
  const int left = std::min(config_.layers - layer - 1, int(brain.state->setup.lookahead));
  const int wanted = wants_.ids ? std::min(wants_.distance, left) : 0;
  for (int d = 0; d < std::max(depth, wanted); ++d) fill_forecast(layer, d, d < depth, d < wanted);
  brain.state->forecasts.count = std::max(depth, wanted);
}

void Conductor::fill_forecast(int layer, int distance, bool from_gpu, bool wanted) {
  const brain::Forecasts& forecasts = config_.brain.state->forecasts;
  const Mailbox& box = config_.mailbox;
  const int count = tokens_ * config_.top_k, later = layer + 1 + distance;
  Word* shape = forecasts.shapes.part(distance);
  shape[0] = later, shape[1] = tokens_, shape[2] = config_.top_k;
  forecasts.steps[distance] = step_;
  Word* ids = forecasts.ids.part(distance);
  double* scores = forecasts.scores.part(distance);
  std::fill_n(ids, count, -1);
  std::fill_n(scores, count, 0.0);
  if (from_gpu) {
    const std::size_t from =
        (std::size_t(layer) * config_.forecast_depth + distance) * config_.forecast_rows * std::size_t(config_.top_k);
    for (int i = 0; i < count; ++i) {
      const Word id = box.forecast_ids[from + i];
      if (id >= 0 && id < config_.experts) ids[i] = id;  // scores that are not numbers say nothing
    }
    std::copy_n(box.forecast_scores + from, count, scores);
  }
  if (wanted) {
    const std::size_t from = std::size_t(later) * count;
    for (int i = 0; i < count; ++i)
      if (wants_.ids[from + i] >= 0) ids[i] = wants_.ids[from + i], scores[i] = wants_.scores[from + i];
  }
  // 0: not known, and the brain judges them.
  const bool known = wanted && (wants_.whole || (wants_.trusted && !from_gpu));
  forecasts.trust[distance] = known ? wants_.trust() : 0;
}

}  // namespace moesaic
