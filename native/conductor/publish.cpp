// The conductor's part of a layer between a decision and the copies it demands.
#include <algorithm>
#include <exception>
#include <stdexcept>

#include "conductor/clock.h"
#include "conductor/conductor.h"
#include "conductor/table_writer.h"

namespace moesaic {

// A plan in the brain's state.
struct PlanWords {
  int on_gpu, on_cpu, moved;
  const Word *gpu, *cpu, *moves;

  PlanWords(const Brain& brain, Word length) {
    const Word* plan = brain.state->decision.plan.data;
    on_gpu = int(plan[0]), on_cpu = int(plan[1]), moved = int(plan[2]);
    gpu = plan + brain::kPlanHeader, cpu = gpu + on_gpu, moves = cpu + on_cpu;
    if (length != (moves - plan) + Word(moved) * brain::kMoveWords) throw std::runtime_error("a plan is cut off");
  }

  const Move& move(int i) const { return *reinterpret_cast<const Move*>(moves + i * brain::kMoveWords); }
};

// In a short step, what is read over the link comes first, because it takes longest. In a long one it is copied, and
// comes last, in the order of the copies: until then the GPU computes what it has.
void Conductor::publish(int layer, Word length, LayerTimes& times) {
  const PlanWords plan(config_.brain, length);
  TableWriter table(config_.mailbox, config_.table, pairs_, tokens_ * config_.top_k);
  std::fill(moved_.begin(), moved_.end(), false);
  for (int i = 0; i < plan.moved; ++i) moved_[std::size_t(plan.move(i).expert)] = true;
  if (!copies_demanded()) read_in_place(plan, table);
  add_resident(layer, plan, table, times);
  table.begin_arriving();
  for (const int expert : coming_) {
    const Flight* flight = coming(slots_.index(layer, expert));
    if (!flight) throw std::runtime_error("a plan computes an expert on the GPU that is not there");
    table.add(expert, device(flight->slot), 0, flight->ticket);
  }
  staging_.end_plan();
  if (copies_demanded()) demand(plan, table);
  table.end(plan.on_cpu);
  table.note(work_.back());
  bytes_moved_ += std::int64_t(config_.block_bytes) * plan.moved;
  cpu_experts_.clear(), cpu_blocks_.clear();
  for (int i = 0; i < plan.on_cpu; ++i) {
    const int index = slots_.index(layer, plan.cpu[i]);
    cpu_experts_.push_back(std::int32_t(plan.cpu[i]));
    cpu_blocks_.push_back(reinterpret_cast<const std::uint8_t*>(host(index)));
    times.hits += slots_.slot_of(index) != kNoSlot;
    work_.back().cpu.push_back(cpu_experts_.back());
    work_.back().cpu_pairs.push_back(std::int32_t(pairs_[std::size_t(plan.cpu[i])].size()));
  }
  times.on_gpu = plan.on_gpu, times.on_cpu = plan.on_cpu, times.transfers = plan.moved;
}

// Moved experts are read by the kernels from host memory, and written to their slots in passing.
void Conductor::read_in_place(const PlanWords& plan, TableWriter& table) {
  for (int i = 0; i < plan.moved; ++i) {
    const Move& move = plan.move(i);
    const int index = slots_.index(move.layer, move.expert);
    std::uintptr_t fill = 0;
    if (move.keep) {
      const int slot = slots_.take(move);
      filled_.push_back({index, slot});
      fill = device(slot);
    }
    table.add(move.expert, host(index), fill, 0);
    work_.back().in_place.push_back(std::int32_t(move.expert));
  }
}

const Flight* Conductor::coming(int index) const {
  const Flight* flight = slots_.flight_of(index);
  return flight ? flight : staging_.flight_of(index);
}

void Conductor::add_resident(int layer, const PlanWords& plan, TableWriter& table, LayerTimes& times) {
  coming_.clear();
  for (int i = 0; i < plan.on_gpu; ++i) {
    const int slot = slots_.slot_of(slots_.index(layer, plan.gpu[i]));
    if (moved_[std::size_t(plan.gpu[i])]) continue;
    if (slot == kNoSlot) {
      coming_.push_back(int(plan.gpu[i]));
      continue;
    }
    table.add(plan.gpu[i], device(slot), 0, 0);
    ++times.hits;
  }
}

// Moved experts are copied: to their slots, or to staging slots, which the kernels of the layer before have read. What
// finds no place there is read in place.
void Conductor::demand(const PlanWords& plan, TableWriter& table) {
  const std::int64_t time = now();
  for (int i = 0; i < plan.moved; ++i) {
    const Move& move = plan.move(i);
    const int index = slots_.index(move.layer, move.expert);
    const int slot = move.keep ? slots_.take(move) : staging_.take();
    if (slot == kNoSlot) {
      table.add(move.expert, host(index), 0, 0);
      work_.back().in_place.push_back(std::int32_t(move.expert));
      continue;
    }
    demanded_.push_back({device(slot), host(index), ++ticket_, index});
    if (move.keep) slots_.depart({index, slot, ticket_, time});
    table.add(move.expert, device(slot), 0, ticket_);
  }
}

void Conductor::start_demanded() {
  for (const Demanded& copy : demanded_) start_copy(copy, false);
  demanded_.clear();
}

void Conductor::start_copy(const Demanded& copy, bool background) {
  copies_->start(copy.to, copy.from, config_.block_bytes, copy.ticket);
  started_ = copy.ticket;
  log_.depart(copy.ticket, copy.index, background);
}

// The link would idle until the next layer's plan: it brings experts of that layer which are not there, those with most
// tokens in the last such step first. Where nearly all experts are used, which ones matters little. A schedule that moves
// nothing would not use them.
void Conductor::stream_ahead(int layer, LayerTimes& times) {
  if (!copies_demanded() || !config_.stream_ahead || (!times.transfers && coming_.empty())) return;
  for (int expert = 0; expert < config_.experts; ++expert)
    loads_[std::size_t(slots_.index(layer - 1, expert))] = int(pairs_[std::size_t(expert)].size());
  if (layer == config_.layers) return;
  absent_.clear();
  for (int expert = 0; expert < config_.experts; ++expert) {
    const int index = slots_.index(layer, expert);
    if (slots_.slot_of(index) == kNoSlot && !slots_.flight_of(index)) absent_.push_back(index);
  }
  const int count = std::min(config_.stream_ahead, int(absent_.size()));
  std::partial_sort(absent_.begin(), absent_.begin() + count, absent_.end(),
                    [this](int a, int b) { return std::pair(-loads_[a], a) < std::pair(-loads_[b], b); });
  for (int i = 0; i < count; ++i) {
    const int slot = staging_.take_ahead();
    if (slot == kNoSlot) break;
    start_copy({device(slot), host(absent_[i]), ++ticket_, absent_[i]}, true);
    staging_.depart_ahead({absent_[i], slot, ticket_, times.submitted});
    bytes_moved_ += std::int64_t(config_.block_bytes);
    ++times.background;
  }
}

// After a failure: what will not arrive, or may not have, has no slot; kernels that wait for it go on.
void Conductor::give_up_layer() {
  for (const auto& [index, slot] : filled_) slots_.give_up(index, slot);
  filled_.clear();
  demanded_.clear(), pending_.clear();
  slots_.drop_after(started_);
  staging_.reset();
  try {
    if (started_ != ticket_) copies_->start(0, 0, 0, ticket_);
  } catch (const std::exception&) {  // the GPU is lost, and with it what waits there
  }
  started_ = ticket_;
}

}  // namespace moesaic
