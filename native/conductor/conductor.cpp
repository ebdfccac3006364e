#include "conductor/conductor.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "conductor/clock.h"
#include "conductor/flags.h"

namespace moesaic {
namespace {

constexpr int kPlanEstimate = 3;            // in a plan's header (policies/records.py)
constexpr int kSpinsBeforeSleep = 200'000;  // some milliseconds, between two tokens

}  // namespace

Conductor::Conductor(const ConductorConfig& config, std::unique_ptr<Copies> copies)
    : config_(config),
      copies_(std::move(copies)),
      slots_(config_.brain, config.slots),
      staging_(config.slots, config.staging, config.stream_ahead),
      loads_(std::size_t(config.layers) * config.experts),
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
  {
    // The caller may have been interrupted before it waited for its step, whose thread has the slots until it ends.
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return state_ != State::running; });
  }
  pending_.clear();  // another machine may arrange the slots from here on
  const std::int64_t deadline = now() + config_.watchdog_ns;
  for (settle(); std::int32_t(copies_->ended() - started_) < 0 || !slots_.flights().empty(); settle()) {
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
  const std::uint32_t ended = copies_->ended();
  log_.watch(ended);
  slots_.settle(ended);
}

void Conductor::begin(const StepShape& step, const Wants& wants) {
  const Mailbox& box = config_.mailbox;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::failed) throw std::runtime_error(error_);
    if (state_ != State::idle) throw std::runtime_error("a step is under way");
    if (std::exchange(expired_, false))
      throw std::runtime_error("the step that was launched ahead was not ready after " +
                               std::to_string(config_.watchdog_ns / 1'000'000) + " ms");
    // Not before: a GPU that still runs a step would wait for ever for flags that were raised already.
    for (std::uint32_t* flag : {box.routed, box.hidden_ready, box.planned, box.summed}) store(flag, 0);
    store(box.forecast_ready, step.forecasts.recorded ? kReleased : 0);
    step_ = step.number, tokens_ = step.tokens, config_.table = step.table, forecast_source_ = step.forecasts;
    long_ = step.is_long, wants_ = wants;
    times_.clear(), work_.clear();
    ahead_ = nullptr, claimed_ = false;
    state_ = State::running;
    store(box.start, 1);
  }
  wake_.notify_one();
}

void Conductor::release() {
  const std::lock_guard lock(mutex_);
  if (state_ == State::running) throw std::runtime_error("a step is under way");
  release_gpu();
  store(config_.mailbox.start, 1);
}

void Conductor::finish() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return state_ != State::running; });
  if (state_ == State::failed) throw std::runtime_error(error_);
  finished_times_ = times_;
}

void Conductor::run() {
  bool attached = false;
  while (true) {
    for (int i = 0; i < kSpinsBeforeSleep && state_ == State::idle; ++i) {
      relax();
      if (i % 64 == 0) std::this_thread::yield();  // a thread that waits for the step may need this core
    }
    await_step();
    if (state_ == State::stopping) return release_gpu();
    std::string error;
    try {
      if (!attached) copies_->attach();
      attached = true;
      conduct_step();
    } catch (const std::exception& failure) {
      error = failure.what();
      // Workers that are not done yet would put the flag back that is raised for good here.
      if (std::exchange(computing_, false)) config_.cpu.wait(config_.cpu.runner, 1);
      release_gpu();
      give_up_layer();
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

// The GPU continues without the CPU's sums, so that the stream can be synchronised; its result is discarded.
void Conductor::release_gpu() {
  config_.mailbox.table[0] = config_.mailbox.table[3] = 0;
  store(config_.mailbox.planned, kReleased);
  store(config_.mailbox.summed, kReleased);
}

// False: the conductor is being stopped.
bool Conductor::await_routing(std::uint32_t layer) {
  const std::int64_t deadline = now() + config_.watchdog_ns;
  for (unsigned spins = 0; load(config_.mailbox.routed) < layer; ++spins) {
    relax();
    log_.watch(copies_->ended());
    if (!pending_.empty()) start_background();
    read_some();
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

// In a long step they may come after the routing. Meanwhile copies that the plan demands are started, one by one: some
// thirty take longer than hidden states do.
void Conductor::await_hidden(std::uint32_t layer) {
  auto next = demanded_.begin();
  for (; next != demanded_.end() && load(config_.mailbox.hidden_ready) < layer; ++next) start_copy(*next, false);
  demanded_.erase(demanded_.begin(), next);
  const std::int64_t deadline = now() + config_.watchdog_ns;
  for (unsigned spins = 0; load(config_.mailbox.hidden_ready) < layer; ++spins) {
    relax();
    if (spins % 1024 == 1023 && (state_ == State::stopping || now() > deadline))
      throw std::runtime_error("hidden states of MoE layer " + std::to_string(layer - 1) + " do not arrive");
  }
}

void Conductor::conduct_layer(int layer) {
  LayerTimes times{};
  times.routed = now();
  pending_.clear();
  settle();  // the kernels of the layer before ended before this one was routed
  staging_.begin_layer();
  fill_brain(layer);
  note_wants(layer);
  if (config_.records) decisions_.push_back(seen());
  const Word length = config_.brain.decide(config_.brain.state);
  if (config_.records) {
    const Word* plan = config_.brain.state->decision.plan.data;
    decisions_.back().plan.assign(plan, plan + length);
  }
  work_.emplace_back();
  publish(layer, length, times);
  const std::uint32_t number = std::uint32_t(layer) + 1;
  times.publishing = times.summing = now();
  // With nothing on the CPU the GPU need not wait for what follows here.
  if (cpu_experts_.empty()) store(config_.mailbox.summed, number);
  store(config_.mailbox.planned, number);
  times.planned = times.summed = now();
  submit(number, times);
  note_read_ahead();
  start_demanded();
  times.submitted = now();
  look_ahead(layer, times);
  stream_ahead(layer + 1, times);
  times.looked_ahead = now();
  log_.watch(copies_->ended());
  if (!cpu_experts_.empty()) await_cpu(number, times);
  begin_read_ahead(layer);
  log_.watch(copies_->ended());
  learn(times);
  times_.push_back(times);
}

void Conductor::fill_brain(int layer) {
  brain::State& state = *config_.brain.state;
  brain::Inputs& inputs = state.inputs;
  const Mailbox& box = config_.mailbox;
  inputs.step = step_, inputs.layer = layer, inputs.tokens = tokens_;
  inputs.used_ranks = config_.top_k, inputs.ranks = config_.ranks;
  state.forecasts.count = state.forecasts.from_body = 0;
  const int pairs = tokens_ * config_.top_k, ranks = tokens_ * config_.ranks;
  std::memcpy(inputs.expert_ids.data, box.ids, pairs * sizeof(Word));
  std::memcpy(inputs.ranked_ids.data, box.ranked, ranks * sizeof(Word));
  std::copy(box.scores, box.scores + ranks, inputs.scores.data);
  const std::int64_t time = now();
  const std::uint32_t ended = copies_->ended();
  std::int64_t ready = 0;
  int count = 0;
  const auto add = [&](const Flight& flight) {
    const bool there = std::int32_t(ended - flight.ticket) >= 0;
    const std::int64_t begin = std::max(ready, flight.start_ns - time);
    ready = there ? std::max<std::int64_t>(ready, 1) : std::max<std::int64_t>(begin + state.costs.transfer_ns, 1);
    if (count == brain::kFlightCapacity) return;
    Word* row = inputs.flights.part(count++);
    row[0] = flight.index / config_.experts, row[1] = flight.index % config_.experts, row[2] = ready;
  };
  for (const Flight& flight : slots_.flights()) add(flight);
  for (const Flight& flight : staging_.ahead()) add(flight);
  inputs.num_flights = count;
  inputs.gpu_busy_ns = inputs.cpu_busy_ns = 0;
  inputs.link_busy_ns = ready;
  for (std::vector<int>& each : pairs_) each.clear();
  for (int pair = 0; pair < pairs; ++pair) {
    if (box.ids[pair] >= config_.experts)
      throw std::runtime_error("the router of MoE layer " + std::to_string(layer) + " chose no expert: its scores are " +
                               "not numbers");
    if (box.ids[pair] >= 0) pairs_[std::size_t(box.ids[pair])].push_back(pair);
  }
}

Decision Conductor::seen() {
  const brain::Inputs& inputs = config_.brain.state->inputs;
  Decision found{};
  const std::uint8_t* resident = inputs.resident.data;
  found.resident.assign(resident, resident + std::size_t(config_.layers) * config_.experts);
  found.held.assign(inputs.held.data, inputs.held.data + config_.layers);
  found.flights.assign(inputs.flights.data, inputs.flights.part(inputs.num_flights));
  found.occupied = inputs.occupied, found.link_busy_ns = inputs.link_busy_ns;
  return found;
}

// The worker that ends the layer tells the GPU, even while this thread still looks ahead.
void Conductor::submit(std::uint32_t number, LayerTimes& times) {
  if (cpu_experts_.empty()) return;
  times.cpu_begun = times.planned;
  if (long_) {
    await_hidden(number);
    times.cpu_begun = now();
  }
  cpu_ended_ns_ = 0;
  const Mailbox& box = config_.mailbox;
  moesaic_layer call{};
  call.hidden = box.hidden, call.hidden_type = config_.hidden_type;
  call.hidden_stride = std::size_t(config_.hidden);
  call.tokens = tokens_, call.top_k = config_.top_k, call.experts_total = config_.experts;
  call.ids = box.ids, call.weights = box.weights;
  const std::size_t pairs = std::size_t(tokens_) * config_.top_k;
  if (std::find(box.ids, box.ids + pairs, -1) != box.ids + pairs) {
    // The kernels leave out experts that are not listed: padding becomes one expert more than there are.
    cpu_ids_.assign(box.ids, box.ids + pairs);
    std::replace(cpu_ids_.begin(), cpu_ids_.end(), std::int64_t(-1), std::int64_t(config_.experts));
    call.ids = cpu_ids_.data(), call.experts_total = config_.experts + 1;
  }
  call.count = std::int32_t(cpu_experts_.size());
  call.experts = cpu_experts_.data(), call.blocks = cpu_blocks_.data();
  call.out = box.sum, call.out_type = long_ ? MOESAIC_BFLOAT16 : MOESAIC_FLOAT32, call.add = 0;
  call.done_flag = box.summed, call.done_value = number, call.done_ns = &cpu_ended_ns_;
  call.any_weights = 1;  // a sequence whose routers see no numbers ends, alone, by its logits
  if (config_.cpu.submit(config_.cpu.runner, &call)) throw std::runtime_error(config_.cpu.error());
  computing_ = true;
}

// Helps until the CPU's experts are done. Who computes them in a test may leave the flag to us.
void Conductor::await_cpu(std::uint32_t number, LayerTimes& times) {
  computing_ = false;
  if (config_.cpu.wait(config_.cpu.runner, 1)) throw std::runtime_error(config_.cpu.error());
  times.summing = times.summed = times.cpu_ended = cpu_ended_ns_ ? cpu_ended_ns_ : now();
  if (load(config_.mailbox.summed) < number) store(config_.mailbox.summed, number);
}

// What has not begun when the next layer is routed is dropped, and does not stand in the way of what it demands.
void Conductor::start_background() {
  slots_.settle(copies_->ended());
  while (!pending_.empty() && slots_.flights().size() < std::size_t(config_.background_copies)) {
    const Move move = pending_.front();
    pending_.pop_front();
    const int index = slots_.index(move.layer, move.expert), slot = slots_.take(move);
    start_copy({device(slot), host(index), ++ticket_, index}, true);
    slots_.depart({index, slot, ticket_, now()});
    bytes_moved_ += std::int64_t(config_.block_bytes);
  }
}

void Conductor::learn(const LayerTimes& times) {
  brain::State& state = *config_.brain.state;
  // Where the CPU had nothing to do the layer's end is not seen here, and the plan's own estimate stands for it.
  const std::int64_t end = cpu_experts_.empty() ? times.planned + state.decision.plan[kPlanEstimate] : times.summed;
  state.report.start_ns = times.planned, state.report.end_ns = end;
  state.report.active = times.on_gpu + times.on_cpu, state.report.hits = times.hits;
  const std::int64_t cpu_ns = cpu_experts_.empty() ? 0 : times.cpu_ended - times.cpu_begun;
  state.report.cpu_ns = cpu_ns;
  config_.brain.learn(&state);
  if (!config_.records) return;
  Decision& decision = decisions_.back();
  decision.report_start_ns = times.planned, decision.report_end_ns = end, decision.hits = times.hits;
  decision.report_cpu_ns = cpu_ns;
}

}  // namespace moesaic
