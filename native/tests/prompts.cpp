// How long a layer of 128 experts takes with 8 to 64 tokens per expert, as prompts have them:
// native_prompts [threads [precision]]. Beside each other: the layer and its phases, the same with weights
// that are in a cache, and the times that reading the weights and multiplying at the peak would take. Rounds
// take turns; the median counts.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "layer/layer_job.h"
#include "layer/runner.h"
#include "products/roofline.h"

using namespace moesaic;

namespace {

constexpr int kHidden = 2048, kInner = 768, kExperts = 128, kTopK = 8, kRounds = 9;
constexpr std::size_t kMemory = std::size_t(1300) << 20;
const char* const kDtypes[] = {"bf16", "int8", "int4"};

using Clock = std::chrono::steady_clock;
double ms_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double, std::milli>(b - a).count();
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;  // a phase that this kind of layer has not got
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Runs another job and notes when its phases begin.
class TimedJob : public Job {
 public:
  explicit TimedJob(std::shared_ptr<Job> job) : job_(std::move(job)), begins_(job_->phases()) {}
  int phases() const override { return job_->phases(); }
  int items(int phase) override { return begins_[phase] = Clock::now(), job_->items(phase); }
  void run(int phase, int item, int worker) override { job_->run(phase, item, worker); }
  void finished() override { job_->finished(), end_ = Clock::now(); }
  bool stays_awake() const override { return job_->stays_awake(); }
  void worker_done() override { job_->worker_done(); }
  double phase_ms(int phase) const {
    return ms_between(begins_[phase], phase + 1 < phases() ? begins_[phase + 1] : end_);
  }

 private:
  const std::shared_ptr<Job> job_;
  std::vector<Clock::time_point> begins_;
  Clock::time_point end_;
};

// Which experts tokens ask for: some several times as often as others, as in benchmarks/kernel_cases.py.
std::vector<std::int64_t> routing(int tokens, std::mt19937& random) {
  std::normal_distribution<double> normal(0, 0.8);
  std::uniform_real_distribution<double> uniform(1e-9, 1);
  std::vector<double> popularity(kExperts), wanted(kExperts);
  for (double& value : popularity) value = normal(random);
  std::vector<std::int64_t> ids, order(kExperts);
  for (int t = 0; t < tokens; ++t) {
    for (int e = 0; e < kExperts; ++e) wanted[e] = popularity[e] - std::log(-std::log(uniform(random)));
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + kTopK, order.end(),
                      [&](auto a, auto b) { return wanted[a] > wanted[b]; });
    ids.insert(ids.end(), order.begin(), order.begin() + kTopK);
  }
  return ids;
}

struct Times {
  std::vector<double> all, phases[3];
};

class Prompt {
 public:
  Prompt(Pool& pool, const LayerConfig& config, std::uint8_t* memory, int tokens)
      : pool_(pool), config_(config), jobs_(config, pool.worker_slots()), memory_(memory), tokens_(tokens) {
    std::mt19937 random(4);
    ids_ = routing(tokens, random);
    weights_.assign(ids_.size(), 1.0f / kTopK);
    hidden_.resize(std::size_t(tokens) * kHidden);
    for (std::uint16_t& value : hidden_)
      value = std::uint16_t(0x3e00 + random() % 0x1ff + (random() & 0x8000));
    out_.resize(hidden_.size());
    experts_.resize(kExperts);
    std::iota(experts_.begin(), experts_.end(), 0);
  }

  // Other experts with every call, unless they are `cached`: the same one for all.
  void run(Times& times, bool cached) {
    const int stored = int(kMemory / config_.layout.bytes);
    std::vector<const std::uint8_t*> blocks;
    for (int e = 0; e < kExperts; ++e)
      blocks.push_back(memory_ + (cached ? 0 : (next_ + e) % stored) * config_.layout.bytes);
    next_ = (next_ + kExperts) % stored;
    LayerCall call;
    call.hidden = hidden_.data(), call.out = out_.data();
    call.hidden_type = call.out_type = FloatType::bf16;
    call.hidden_stride = kHidden;
    call.tokens = tokens_, call.top_k = kTopK, call.experts_total = call.count = kExperts;
    call.ids = ids_.data(), call.weights = weights_.data();
    call.experts = experts_.data(), call.blocks = blocks.data();
    const auto before = Clock::now();
    const auto job = std::make_shared<TimedJob>(jobs_.make(call, workspace_));
    pool_.wait(pool_.submit(job), true);
    times.all.push_back(ms_between(before, Clock::now()));
    for (int p = 0; p < std::min(job->phases(), 3); ++p) times.phases[p].push_back(job->phase_ms(p));
  }

 private:
  Pool& pool_;
  const LayerConfig& config_;
  LayerJobs jobs_;
  const std::uint8_t* memory_;
  const int tokens_;
  std::vector<std::int64_t> ids_;
  std::vector<float> weights_;
  std::vector<std::uint16_t> hidden_, out_;
  std::vector<std::int32_t> experts_;
  Workspace workspace_;
  int next_ = 0;
};

struct Limits {
  double bytes_per_ms, bf16_per_ms, int8_per_ms;
};

void measure(Pool& pool, const LayerConfig& config, std::uint8_t* memory, const Limits& limits) {
  for (const int per_expert : {8, 16, 32, 64}) {
    const int tokens = per_expert * kExperts / kTopK;
    Prompt prompt(pool, config, memory, tokens);
    Times from_memory, from_cache;
    for (int round = -1; round < kRounds; ++round)
      for (const bool cached : {false, true}) {
        Times warm_up;
        prompt.run(round < 0 ? warm_up : cached ? from_cache : from_memory, cached);
      }
    const double reading = double(kExperts) * double(config.layout.bytes) / limits.bytes_per_ms;
    const double operations = 6.0 * kHidden * kInner * tokens * kTopK;
    const double multiplying =
        operations / (config.layout.dtype == Dtype::int8 ? limits.int8_per_ms : limits.bf16_per_ms);
    const double now = median(from_memory.all);
    const auto& phases = from_memory.phases;
    std::printf("%s %2d tokens per expert: %6.2f ms (up %.2f down %.2f sum %.2f), from a cache %6.2f; "
                "reading %5.2f, multiplying %5.2f: %.2f times the larger\n",
                kDtypes[int(config.layout.dtype)], per_expert, now, median(phases[0]), median(phases[1]),
                median(phases[2]), median(from_cache.all), reading, multiplying,
                now / std::max(reading, multiplying));
    std::fflush(stdout);
  }
}

double job_ms(Pool& pool, const std::shared_ptr<Job>& job) {
  const auto before = Clock::now();
  pool.wait(pool.submit(job), true);
  return ms_between(before, Clock::now());
}

// Of the fastest unit that multiplies numbers of this kind, or wider ones ("fp32").
double peak_per_ms(Pool& pool, const char* kind) {
  double best = 0;
  for (const Peak& peak : peaks())
    for (const char* each : {kind, "fp32"})
      for (int i = 0; i < 3 && !std::strncmp(peak.name, each, 4); ++i) {
        const int items = 100 * pool.worker_slots();
        best = std::max(best, items * peak.item_ops / job_ms(pool, peak_job(peak, items)));
      }
  return best;
}

}  // namespace

int main(int count, char** arguments) {
  const int threads = count > 1 ? std::atoi(arguments[1]) : int(std::thread::hardware_concurrency());
  if (threads < 1) return std::printf("native_prompts [threads], at least 1\n"), 2;
  const auto pool = std::make_shared<Pool>(std::vector<int>(threads - 1, -1), 50000);
  void* mapped = mmap(nullptr, kMemory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return std::printf("1.3 GB of memory are needed\n"), 2;
  madvise(mapped, kMemory, MADV_HUGEPAGE);
  auto* memory = static_cast<std::uint8_t*>(mapped);
  std::memset(memory, 1, kMemory);
  double fastest = 1e30;
  for (int i = 0; i < 6; ++i)
    fastest = std::min(fastest, job_ms(*pool, stream_job(memory, kMemory, i % 2, pool->worker_slots())));
  const Limits limits{double(kMemory) / fastest, peak_per_ms(*pool, "bf16"),
                      peak_per_ms(*pool, "int8")};
  std::printf("%d threads, streaming %.1f GB/s, peak bf16 %.2f int8 %.2f TFLOP/s\n", threads,
              limits.bytes_per_ms / 1e6, limits.bf16_per_ms / 1e9, limits.int8_per_ms / 1e9);
  constexpr int kTiles[3] = {4, 8, 6};
  for (const Dtype dtype : {Dtype::bf16, Dtype::int8, Dtype::int4}) {
    if (count > 2 && std::strcmp(arguments[2], kDtypes[int(dtype)])) continue;
    Runner runner(pool, dtype, kHidden, kInner, Activation::silu, Isa::best, kTiles[int(dtype)]);
    std::vector<float> weights(std::size_t(kHidden) * kInner);
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = float(i * 37 % 1009) / 6000 - 0.08f;
    const MatrixView up{weights.data(), FloatType::f32, kHidden};
    const MatrixView down{weights.data(), FloatType::f32, kInner};
    runner.pack({up, up, down}, memory);
    const std::size_t bytes = runner.config().layout.bytes;
    for (std::size_t at = bytes; at + bytes <= kMemory; at += bytes) std::memcpy(memory + at, memory, bytes);
    measure(*pool, runner.config(), memory, limits);
  }
}
