#include "conductor/conductor.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace moesaic {
namespace {

constexpr std::uint32_t kReleased = 0x7fffffff;  // above every layer's number: nobody waits any more
constexpr int kSpinsBeforeSleep = 200'000;       // some milliseconds, between two tokens

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

std::uint32_t load(std::uint32_t* flag) { return std::atomic_ref(*flag).load(std::memory_order_acquire); }
void store(std::uint32_t* flag, std::uint32_t value) {
  std::atomic_ref(*flag).store(value, std::memory_order_release);
}

}  // namespace

Conductor::Conductor(const ConductorConfig& config, std::unique_ptr<Copies> copies)
    : config_(config),
      copies_(std::move(copies)),
      slots_(config_.brain, config.slots),
      pairs_(std::size_t(config.experts)),
      moved_(std::size_t(config.experts)),
      thread_([this] { run(); }) {
  if (config.core >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(config.core, &set);
    pthread_setaffinity_np(thread_.native_handle(), sizeof set, &set);
  }
}

Conductor::~Conductor() {
  {
    const std::lock_guard lock(mutex_);
    state_ = State::stopping;
  }
  wake_.notify_one();
  thread_.join();
}

std::vector<int> Conductor::place(const std::vector<int>& indices) {
  std::vector<int> found;
  for (const int index : indices) {
    const Move move{index / config_.experts, index % config_.experts, -1, -1, 1};
    found.push_back(slots_.take(move));
    slots_.arrive(index, found.back());
  }
  return found;
}

std::vector<int> Conductor::slots() {
  const std::int64_t deadline = now() + config_.watchdog_ns;
  for (settle(); !slots_.flights().empty(); settle()) {
    if (now() > deadline) throw std::runtime_error("a copy to the GPU does not end");
    std::this_thread::yield();
  }
  return slots_.all();
}

void Conductor::load_slots(const std::vector<int>& slot_of) {
  slots();
  slots_.load(slot_of);
}

// Takes note of what has arrived: copies, and what kernels of earlier layers have filled.
void Conductor::settle() {
  for (const auto& [index, slot] : filled_) slots_.arrive(index, slot);
  filled_.clear();
  slots_.settle(copies_->ended());
}

void Conductor::begin(std::int64_t step, int tokens, const TableLayout& layout) {
  const Mailbox& box = config_.mailbox;
  for (std::uint32_t* flag : {box.routed, box.planned, box.summed}) store(flag, 0);
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::failed) throw std::runtime_error(error_);
    if (state_ != State::idle) throw std::runtime_error("a step is under way");
    step_ = step, tokens_ = tokens, config_.table = layout;
    times_.clear();
    state_ = State::running;
  }
  wake_.notify_one();
}

void Conductor::finish() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return state_ != State::running; });
  if (state_ == State::failed) throw std::runtime_error(error_);
}

void Conductor::run() {
  bool attached = false;
  while (true) {
    for (int i = 0; i < kSpinsBeforeSleep && state_ == State::idle; ++i) relax();
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return state_ == State::running || state_ == State::stopping; });
      if (state_ == State::stopping) return release_gpu();
    }
    std::string error;
    try {
      if (!attached) copies_->attach();
      attached = true;
      conduct_step();
    } catch (const std::exception& failure) {
      error = failure.what();
      release_gpu();
      for (const auto& [index, slot] : filled_) slots_.give_up(index, slot);  // kernels may not have filled them
      filled_.clear();
    }
    {
      const std::lock_guard lock(mutex_);
      error_ = error;
      if (state_ == State::running) state_ = error.empty() ? State::idle : State::failed;
    }
    done_.notify_all();
  }
}

void Conductor::conduct_step() {
  for (int layer = 0; layer < config_.layers; ++layer) {
    if (!await_routing(std::uint32_t(layer) + 1)) return;
    conduct_layer(layer);
  }
}

// The GPU goes on without us, so that the stream can be synchronised; its result is worthless.
void Conductor::release_gpu() {
  config_.mailbox.table[0] = 0;
  store(config_.mailbox.planned, kReleased);
  store(config_.mailbox.summed, kReleased);
}

// False: the conductor is being stopped.
bool Conductor::await_routing(std::uint32_t layer) {
  const std::int64_t deadline = now() + config_.watchdog_ns;
  for (unsigned spins = 0; load(config_.mailbox.routed) < layer; ++spins) {
    relax();
    if (spins % 1024 != 1023) continue;
    if (state_ == State::stopping) {
      release_gpu();
      return false;
    }
    if (now() > deadline)
      throw std::runtime_error("the GPU has not reached MoE layer " + std::to_string(layer - 1) + " after " +
                               std::to_string(config_.watchdog_ns / 1'000'000) + " ms");
  }
  return true;
}

void Conductor::conduct_layer(int layer) {
  LayerTimes times{};
  times.routed = now();
  settle();  // the kernels of the layer before ended before this one was routed
  fill_brain(layer);
  if (config_.records) decisions_.push_back(seen());
  const Word length = config_.brain.decide(config_.brain.words);
  if (config_.records) {
    const Word* plan = config_.brain.ints(config_.brain.at.plan);
    decisions_.back().plan.assign(plan, plan + length);
  }
  publish(layer, length, times);
  store(config_.mailbox.planned, std::uint32_t(layer) + 1);
  times.planned = now();
  submit();
  times.submitted = now();
  look_ahead(times);
  times.looked_ahead = now();
  if (!cpu_experts_.empty() && config_.cpu.wait(config_.cpu.runner, 1))
    throw std::runtime_error(config_.cpu.error());
  store(config_.mailbox.summed, std::uint32_t(layer) + 1);
  times.summed = now();
  learn(times);
  times_.push_back(times);
}

void Conductor::fill_brain(int layer) {
  Brain& brain = config_.brain;
  const Mailbox& box = config_.mailbox;
  const BrainFields& at = brain.at;
  brain[at.step] = step_, brain[at.layer] = layer, brain[at.tokens] = tokens_;
  brain[at.used_ranks] = config_.top_k, brain[at.ranks] = config_.ranks;
  brain[at.forecasts] = brain[at.body_forecasts] = 0;
  const int pairs = tokens_ * config_.top_k, ranks = tokens_ * config_.ranks;
  std::memcpy(brain.ints(at.expert_ids), box.ids, pairs * sizeof(Word));
  std::memcpy(brain.ints(at.ranked_ids), box.ranked, ranks * sizeof(Word));
  std::copy(box.scores, box.scores + ranks, brain.floats(at.scores));
  const std::int64_t time = now();
  std::int64_t ready = 0;
  int count = 0;
  Word* flights = brain.ints(at.flights);
  for (const Flight& flight : slots_.flights()) {
    ready = std::max<std::int64_t>(std::max(ready, flight.start_ns - time) + brain[at.transfer_ns], 1);
    if (count == at.flight_capacity) break;
    flights[3 * count] = flight.index / config_.experts;
    flights[3 * count + 1] = flight.index % config_.experts;
    flights[3 * count + 2] = ready;
    ++count;
  }
  brain[at.num_flights] = count;
  brain[at.gpu_busy_ns] = brain[at.cpu_busy_ns] = 0;
  brain[at.link_busy_ns] = ready;
  for (std::vector<int>& each : pairs_) each.clear();
  for (int pair = 0; pair < pairs; ++pair) {
    if (box.ids[pair] >= config_.experts)
      throw std::runtime_error("the router of MoE layer " + std::to_string(layer) + " chose no expert: its scores are " +
                               "not numbers");
    if (box.ids[pair] >= 0) pairs_[std::size_t(box.ids[pair])].push_back(pair);
  }
}

// Writes the GPU's part of the plan into the table: what is read over the link first, because it takes longest, then
// what is resident, then what is still on its way.
void Conductor::publish(int layer, Word length, LayerTimes& times) {
  const Brain& brain = config_.brain;
  const Word* plan = brain.words + brain.words[brain.at.plan];
  const int on_gpu = int(plan[0]), on_cpu = int(plan[1]), moved = int(plan[2]);
  const Word *gpu = plan + brain.at.plan_header, *cpu = gpu + on_gpu;
  const Word* moves = cpu + on_cpu;
  if (length != (moves - plan) + Word(moved) * brain.at.move_words) throw std::runtime_error("a plan is cut off");
  Word* table = config_.mailbox.table;
  const TableLayout& t = config_.table;
  float* shares = reinterpret_cast<float*>(table + t.shares_at);
  std::fill(shares, shares + tokens_ * config_.top_k, 0.0f);
  int count = 0, rows = 0;
  const auto add = [&](Word expert, std::uintptr_t block, std::uintptr_t fill, std::uint32_t wait) {
    table[t.blocks_at + count] = Word(block), table[t.fills_at + count] = Word(fill);
    table[t.waits_at + count] = wait, table[t.firsts_at + count] = rows;
    for (const int pair : pairs_[std::size_t(expert)]) {
      table[t.rows_at + rows++] = pair;
      shares[pair] = config_.mailbox.weights[pair];
    }
    ++count;
  };
  const auto host = [&](int index) { return config_.store + std::size_t(index) * config_.block_bytes; };
  const auto device = [&](int slot) { return config_.slab + std::size_t(slot) * config_.block_bytes; };
  std::fill(moved_.begin(), moved_.end(), false);
  for (int i = 0; i < moved; ++i) {
    const Move& move = *reinterpret_cast<const Move*>(moves + i * brain.at.move_words);
    const int index = slots_.index(move.layer, move.expert);
    std::uintptr_t fill = 0;
    if (move.keep) {
      const int slot = slots_.take(move);
      filled_.push_back({index, slot});
      fill = device(slot);
    }
    add(move.expert, host(index), fill, 0);
    moved_[std::size_t(move.expert)] = true;
    bytes_moved_ += std::int64_t(config_.block_bytes);
  }
  coming_.clear();
  for (int i = 0; i < on_gpu; ++i) {
    const int index = slots_.index(layer, gpu[i]), slot = slots_.slot_of(index);
    if (moved_[std::size_t(gpu[i])]) continue;
    if (slot == kNoSlot) {
      coming_.push_back(int(gpu[i]));
      continue;
    }
    add(gpu[i], device(slot), 0, 0);
    ++times.hits;
  }
  for (const int expert : coming_) {
    const Flight* flight = slots_.flight_of(slots_.index(layer, expert));
    if (!flight) throw std::runtime_error("a plan computes an expert on the GPU that is not there");
    add(expert, device(flight->slot), 0, flight->ticket);
  }
  table[t.firsts_at + count] = rows;
  table[2] = on_cpu;
  table[0] = count;
  cpu_experts_.clear(), cpu_blocks_.clear();
  for (int i = 0; i < on_cpu; ++i) {
    cpu_experts_.push_back(std::int32_t(cpu[i]));
    cpu_blocks_.push_back(reinterpret_cast<const std::uint8_t*>(host(slots_.index(layer, cpu[i]))));
    times.hits += slots_.slot_of(slots_.index(layer, cpu[i])) != kNoSlot;
  }
  times.on_gpu = on_gpu, times.on_cpu = on_cpu, times.transfers = moved;
}

Decision Conductor::seen() {
  Brain& brain = config_.brain;
  const BrainFields& at = brain.at;
  Decision found{};
  const std::uint8_t* resident = brain.octets(at.resident);
  found.resident.assign(resident, resident + std::size_t(config_.layers) * config_.experts);
  found.held.assign(brain.ints(at.held), brain.ints(at.held) + config_.layers);
  found.flights.assign(brain.ints(at.flights), brain.ints(at.flights) + 3 * brain[at.num_flights]);
  found.occupied = brain[at.occupied], found.link_busy_ns = brain[at.link_busy_ns];
  return found;
}

void Conductor::submit() {
  if (cpu_experts_.empty()) return;
  const Mailbox& box = config_.mailbox;
  moesaic_layer call{};
  call.hidden = box.hidden, call.hidden_type = config_.hidden_type;
  call.hidden_stride = std::size_t(config_.hidden);
  call.tokens = tokens_, call.top_k = config_.top_k, call.experts_total = config_.experts;
  call.ids = box.ids, call.weights = box.weights;
  call.count = std::int32_t(cpu_experts_.size());
  call.experts = cpu_experts_.data(), call.blocks = cpu_blocks_.data();
  call.out = box.sum, call.out_type = MOESAIC_FLOAT32, call.add = 0;
  if (config_.cpu.submit(config_.cpu.runner, &call)) throw std::runtime_error(config_.cpu.error());
}

void Conductor::look_ahead(LayerTimes& times) {
  Brain& brain = config_.brain;
  const Word space = brain.at.flight_capacity - Word(slots_.flights().size());  // the brain sees no more of them
  const Word count = std::min(brain.look_ahead(brain.words), std::max<Word>(space, 0));
  const Word* moves = brain.ints(brain.at.background);
  for (Word i = 0; i < count; ++i) {
    const Move& move = *reinterpret_cast<const Move*>(moves + i * brain.at.move_words);
    const int index = slots_.index(move.layer, move.expert), slot = slots_.take(move);
    copies_->start(config_.slab + std::size_t(slot) * config_.block_bytes,
                   config_.store + std::size_t(index) * config_.block_bytes, config_.block_bytes, ++ticket_);
    slots_.depart({index, slot, ticket_, now()});
    bytes_moved_ += std::int64_t(config_.block_bytes);
  }
  times.background = std::int32_t(count);
  if (config_.records) decisions_.back().background.assign(moves, moves + count * brain.at.move_words);
}

void Conductor::learn(const LayerTimes& times) {
  Brain& brain = config_.brain;
  const BrainFields& at = brain.at;
  brain[at.report_start_ns] = times.planned, brain[at.report_end_ns] = times.summed;
  brain[at.report_active] = times.on_gpu + times.on_cpu, brain[at.report_hits] = times.hits;
  brain.learn(brain.words);
  if (!config_.records) return;
  Decision& decision = decisions_.back();
  decision.report_start_ns = times.planned, decision.report_end_ns = times.summed, decision.hits = times.hits;
}

}  // namespace moesaic
