// A thread that conducts decode steps: for every MoE layer it waits for the GPU's routing, asks the compiled brain,
// publishes the GPU's part of the plan, has CPU workers compute theirs and starts background copies. No Python.
//
// GPU and conductor meet through flags in pinned memory. Within a step, with layers counted from 1: the GPU sets
// `routed` to the layer when hidden states and routing are in the mailbox; the conductor sets `planned` when the table
// is written, and `summed` when the CPU's sum is in the mailbox. A new step begins with all of them 0. Where the GPU
// applies the gates of later layers, it sets `forecast_ready` when their choices are in the mailbox; no thread has to wait for it.
// In long steps hidden states are megabytes: they travel while the layer is planned (`hidden_ready`), and the CPU's sum
// comes back as bf16.
//
// A launch begins when `start` is 1, and sets it back. So the next step can be launched while one runs, before its
// inputs are known (`expect`). One that is not wanted goes through without effect: after a while the conductor's thread
// lets it, since a thread that waits for the whole GPU waits for such a launch, too.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "conductor/brain.h"
#include "conductor/copies.h"
#include "conductor/copy_log.h"
#include "conductor/slots.h"
#include "conductor/staging.h"
#include "conductor/wants.h"
#include "moesaic_native.h"

namespace moesaic {

// Pinned memory that both sides read and write. Sizes are for the largest batch.
struct Mailbox {
  std::uint32_t *start, *routed, *hidden_ready, *planned, *summed, *forecast_ready;  // in different cache lines
  const void* hidden;                        // [tokens, hidden], from the GPU
  const std::int64_t* ids;                   // [tokens, top_k], from the GPU
  const float* weights;                      // [tokens, top_k], from the GPU
  const std::int64_t* ranked;                // [tokens, ranks]: experts by probability, from the GPU
  const float* scores;                       // [tokens, ranks]: their probabilities
  std::int64_t* table;                       // kernels/gpu/table.py, to the GPU
  void* sum;                                 // [tokens, hidden] of the CPU's experts, to the GPU: fp32, or bf16
  const std::int64_t* forecast_ids;          // [layers, depth, rows, top_k]: what later layers would choose
  const float* forecast_scores;
};

// Where things are in the table, in words (kernels/gpu/table.py).
struct TableLayout {
  int experts, blocks_at, fills_at, waits_at, firsts_at, rows_at, shares_at;
};

// How CPU experts are computed: moesaic_submit, moesaic_wait and so on, or what a test puts in their place.
struct CpuExperts {
  void* runner = nullptr;
  int (*submit)(void*, const moesaic_layer*) = nullptr;
  int (*wait)(void*, std::int32_t) = nullptr;
  int (*read_ahead)(void*, const std::uint8_t* const*, std::int32_t) = nullptr;  // null: caches are left alone
  int (*read_some)(void*) = nullptr;
  const char* (*error)() = nullptr;
};

struct ConductorConfig {
  int layers = 0, experts = 0, top_k = 0, ranks = 0, hidden = 0, hidden_type = 0, slots = 0;
  std::size_t block_bytes = 0;
  std::uintptr_t store = 0;  // host blocks [layers, experts], as the GPU and the CPU address them
  std::uintptr_t slab = 0;   // GPU slots
  std::int64_t watchdog_ns = 10'000'000'000;
  std::int64_t ahead_ns = 20'000'000;  // that a launch ahead waits for its step, after the last one
  int core = -1;    // to run on; -1: any
  int records = 0;  // 1: keep every decision
  int staging = 0;  // slots behind the others, for what a layer uses once
  int copy_from = 1 << 30;      // steps of so many tokens demand experts by copies; shorter ones read them in place
  int look_ahead_to = 1 << 30;  // no longer step looks ahead
  int stream_ahead = 0;         // experts of the next layer that steps with copies bring to staging slots meanwhile
  int background_copies = 1;    // under way at once
  int forecast_depth = 0, forecast_rows = 0;  // of the mailbox: later layers, tokens
  Brain brain;
  Mailbox mailbox{};
  TableLayout table{};
  CpuExperts cpu;
};

// What happened in a layer, in nanoseconds of the steady clock.
struct LayerTimes {
  std::int64_t routed, planned, submitted, looked_ahead, summed;
  std::int32_t on_gpu, on_cpu, transfers, background, hits;
  std::int64_t publishing, cpu_begun, cpu_ended, summing;  // right before `planned` and `summed`; 0: no CPU experts
};

// Which experts a layer's devices computed, with how many pairs each.
struct LayerWork {
  std::vector<std::int32_t> gpu, gpu_pairs;  // in the table's order
  std::vector<std::int32_t> in_place;        // of those, what kernels read from host memory
  std::vector<std::int32_t> cpu, cpu_pairs;
  std::int32_t there = 0;                    // of the GPU's, those in front of the first that may have to arrive
};

// What the brain saw of a layer and what it answered, for deciding it again elsewhere. Words as in its state.
struct Decision {
  std::vector<std::uint8_t> resident;
  std::vector<Word> held, flights, plan, background;
  Word occupied, link_busy_ns, report_start_ns, report_end_ns, hits, report_cpu_ns;
};

// A copy that a layer's plan demands.
struct Demanded {
  std::uintptr_t to, from;
  std::uint32_t ticket;
  int index;
};

// What a step's mailbox says of later layers: nothing, what the GPU computes on the way, or what stood there before.
struct ForecastSource {
  int depth = 0;  // layers; 0: nothing, and the brain predicts
  bool recorded = false;
};

// One step: its number and tokens, where things are in its table, what its mailbox says of later layers, and whether it
// is long: hidden states have a flag of their own, and the CPU's sum is bf16.
struct StepShape {
  std::int64_t number = 0;
  int tokens = 0;
  TableLayout table{};
  ForecastSource forecasts;
  bool is_long = false;
};

struct PlanWords;
class TableWriter;

class Conductor {
 public:
  Conductor(const ConductorConfig& config, std::unique_ptr<Copies> copies);
  ~Conductor();

  // Places experts before the first step; `indices` are layer * experts + expert. Returns their slots.
  std::vector<int> place(const std::vector<int>& indices);
  // By layer * experts + expert, the slot or -1, when a step under way has ended and all copies have arrived. The GPU
  // must be idle by then.
  std::vector<int> slots();
  // The same as another machine has arranged them since.
  void load_slots(const std::vector<int>& slot_of);
  // Prepares a step, and starts the launch that was claimed; without one, launch the graph afterwards. The arrays of
  // `wants` stay until the next step begins.
  void begin(const StepShape& step, const Wants& wants = {});
  // Between steps: the next launch finds no experts and does not wait.
  void release();
  // The next step has been launched. `active`: where that launch reads how many of its tokens are real.
  void expect(std::int64_t* active);
  // Whether a launch waits for its step still; it does until that begins. If not, synchronise before that.
  bool claim();
  // Lets a launch through that waits, claimed or not, when a step under way has ended; whether there was one.
  bool let_through();
  // Until the conductor has done its part of the step; throws what went wrong in it.
  void finish();
  // Of the last step that was finished: the next one may be under way.
  const std::vector<LayerTimes>& times() const { return finished_times_; }
  const std::vector<LayerWork>& work() const { return work_; }
  // Copies that have ended since this was called last; between steps.
  std::vector<CopyTimes> take_copies() { return log_.take(); }
  // Of all steps since the beginning, where the configuration asks for it.
  const std::vector<Decision>& decisions() const { return decisions_; }
  std::int64_t bytes_moved() const { return bytes_moved_; }
  // Of the last step: how right its wants were.
  const Wants& wants() const { return wants_; }
  // Layers whose forecasts were handed to the brain, and those that had none in time, since the beginning.
  std::int64_t forecasts_in_time() const { return forecasts_in_time_; }
  std::int64_t forecasts_late() const { return forecasts_late_; }
  // Experts that the CPU was given in steps of one token, and how many of those its workers were asked to read ahead,
  // since the beginning.
  std::int64_t cpu_experts() const { return num_cpu_experts_; }
  std::int64_t experts_read_ahead() const { return num_read_ahead_; }

 private:
  enum class State { idle, running, failed, stopping };

  void run();
  void conduct_step();
  void conduct_layer(int layer);
  void fill_brain(int layer);
  void publish(int layer, Word length, LayerTimes& times);
  void read_in_place(const PlanWords& plan, TableWriter& table);
  void add_resident(int layer, const PlanWords& plan, TableWriter& table, LayerTimes& times);
  void demand(const PlanWords& plan, TableWriter& table);
  void start_demanded();
  void start_copy(const Demanded& copy, bool background);
  void stream_ahead(int layer, LayerTimes& times);
  const Flight* coming(int index) const;
  bool copies_demanded() const { return tokens_ >= config_.copy_from; }
  void give_up_layer();
  std::uintptr_t host(int index) const { return config_.store + std::size_t(index) * config_.block_bytes; }
  std::uintptr_t device(int slot) const { return config_.slab + std::size_t(slot) * config_.block_bytes; }
  void submit(std::uint32_t number, LayerTimes& times);
  void await_cpu(std::uint32_t number, LayerTimes& times);
  void look_ahead(int layer, LayerTimes& times);
  Word find_moves(int layer);
  bool await_forecasts(int layer);
  void begin_read_ahead(int layer);
  void read_some();
  void read_ahead(int layer, const Word* ids, Word count);
  void note_read_ahead();
  void fill_forecasts(int layer, int depth);
  void fill_forecast(int layer, int distance, bool from_gpu, bool wanted);
  void note_wants(int layer);
  void start_background();
  void learn(const LayerTimes& times);
  Decision seen();
  bool await_routing(std::uint32_t layer);
  void await_hidden(std::uint32_t layer);
  void settle();
  void await_step();
  void pass_ahead();
  void release_gpu();

  ConductorConfig config_;
  std::unique_ptr<Copies> copies_;
  Slots slots_;
  Staging staging_;
  std::vector<int> loads_;  // by layer * experts + expert: tokens in the last step with copies
  std::vector<LayerTimes> times_, finished_times_;
  std::vector<LayerWork> work_;  // one more while a layer is under way
  CopyLog log_;
  std::vector<Decision> decisions_;
  std::int64_t step_ = 0;
  int tokens_ = 0;
  bool long_ = false;  // the step under way
  std::uint32_t ticket_ = 0;   // of the last copy that was thought of
  std::uint32_t started_ = 0;  // of the last copy that was started
  std::atomic<std::int64_t> bytes_moved_{0};  // asked for in mid-step, too
  ForecastSource forecast_source_;
  Wants wants_;
  std::int64_t patience_ns_ = 50'000;  // with forecasts that are not there yet
  std::int64_t forecasts_in_time_ = 0, forecasts_late_ = 0;
  std::int64_t num_cpu_experts_ = 0, num_read_ahead_ = 0;

  // Of the layer under way.
  std::vector<std::vector<int>> pairs_;  // by expert: token * top_k + rank
  std::vector<bool> moved_;              // by expert: this layer's plan moves it
  std::vector<std::pair<int, int>> filled_;  // index and slot of what the GPU's kernels are filling
  std::vector<int> coming_;              // experts that the GPU waits for
  std::deque<Move> pending_;             // background moves that have not begun
  std::vector<Demanded> demanded_;       // copies to start
  std::vector<int> absent_;              // experts of the next layer that are not on the GPU
  bool computing_ = false;               // the CPU's experts, and no thread waits for them yet
  std::int64_t cpu_ended_ns_ = 0;        // noted by a worker
  std::vector<std::int32_t> cpu_experts_;
  std::vector<const std::uint8_t*> cpu_blocks_;
  std::vector<std::int64_t> cpu_ids_;    // where tokens use fewer experts than top-k

  // Between two layers.
  int awaited_forecast_ = -1;  // the layer whose forecast of the next one is to come; -1: none
  bool reading_ = false;
  std::vector<std::int32_t> ahead_experts_;  // of the next layer, read ahead
  std::vector<const std::uint8_t*> ahead_blocks_;

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::int64_t* ahead_ = nullptr;  // of the launch that waits for its step: where its active tokens are counted
  bool claimed_ = false;           // it is kept for the caller that prepares that step
  bool expired_ = false;           // for too long: it has gone through
  std::atomic<State> state_{State::idle};
  std::string error_;
  std::thread thread_;
};

}  // namespace moesaic
