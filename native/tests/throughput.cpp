// How fast every instruction set of this CPU multiplies: native_throughput [threads]. One token: GB/s of
// weights beyond every cache; many tokens: operations per second, beside what a loop on registers reaches.
#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "linear/linear.h"
#include "products/roofline.h"

using namespace moesaic;

namespace {

constexpr int kInputs = 2048, kManyTokens = 512, kManyOutputs = 4096;
constexpr std::size_t kMemory = std::size_t(1) << 30;
const char* const kDtypes[] = {"bf16", "int8", "int4"};

template <typename Function>
double best_seconds(int rounds, Function&& function) {
  double best = 1e30;
  for (int i = 0; i < rounds; ++i) {
    const auto before = std::chrono::steady_clock::now();
    function();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count());
  }
  return best;
}

double job_seconds(Pool& pool, const std::shared_ptr<Job>& job) {
  return best_seconds(1, [&] { pool.wait(pool.submit(job), true); });
}

double peak_gflops(Pool& pool, const Peak& peak) {
  const int items = 200 * pool.worker_slots();
  double best = 0;
  for (int i = 0; i < 3; ++i)
    best = std::max(best, items * peak.item_ops / job_seconds(pool, peak_job(peak, items)) / 1e9);
  return best;
}

// The unit that a set's products use: fp32, or bytes where it has dot products of them.
std::string unit_of(const std::string& set, Dtype dtype) {
  const std::string width = set.substr(0, 6) == "avx512" ? "avx512" : "avx2";
  if (set == "amx") return dtype == Dtype::int8 ? "int8-amx" : "bf16-amx";
  if (dtype == Dtype::bf16) return (set == "avx512" ? "bf16-" : "fp32-") + width;
  return (set == "avx512-base" || set == "avx2" ? "fp32-" : "int8-") + width;
}

void measure(const std::shared_ptr<Pool>& pool, const NamedIsa& set, std::uint8_t* memory, double stream) {
  constexpr int kTiles[3] = {4, 8, 6};
  LinearRunner runner(pool, set.isa, kTiles[0], kTiles[1], kTiles[2]);
  std::vector<float> weights(std::size_t(kStripOutputs) * kInputs);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = float(i * 37 % 1009) / 600 - 0.8f;
  std::vector<std::uint16_t> x(std::size_t(kManyTokens) * kInputs), out(4 << 20);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::uint16_t(0x3e00 + i * 2654435761u % 0x1ff);
  for (const Dtype dtype : {Dtype::bf16, Dtype::int8, Dtype::int4}) {
    const PackedMatrix strip(dtype, kStripOutputs, kInputs, memory);
    const int strips = int(kMemory / strip.bytes());
    runner.pack({weights.data(), FloatType::f32, kInputs}, strip);
    for (int i = 1; i < strips; ++i) std::memcpy(memory + i * strip.bytes(), memory, strip.bytes());
    const PackedMatrix large(dtype, strips * kStripOutputs, kInputs, memory);
    const double one = best_seconds(
        5, [&] { runner.run({x.data(), FloatType::bf16, kInputs, 1}, {{large, nullptr, out.data()}}); });
    const PackedMatrix small(dtype, kManyOutputs, kInputs, memory);
    const auto many = [&] {
      runner.run({x.data(), FloatType::bf16, kInputs, kManyTokens}, {{small, nullptr, out.data()}});
    };
    const double rate = 2.0 * kManyTokens * kManyOutputs * kInputs / best_seconds(7, many) / 1e9;
    const double speed = double(large.bytes()) / one / 1e9;
    const std::string unit = unit_of(set.name, dtype);
    double peak = 0;
    for (const Peak& each : peaks())
      if (unit == each.name) peak = peak_gflops(*pool, each);
    std::printf("%-12s %s  1 token %6.1f GB/s (%3.0f %% of streaming)  %d tokens %7.0f GFLOP/s (%3.0f %% of %s)\n",
                set.name, kDtypes[int(dtype)], speed, 100 * speed / stream, kManyTokens, rate,
                100 * rate / peak, unit.c_str());
  }
}

}  // namespace

int main(int count, char** arguments) {
  const int threads = count > 1 ? std::atoi(arguments[1]) : int(std::thread::hardware_concurrency());
  if (threads < 1) return std::printf("native_throughput [threads], at least 1\n"), 2;
  const auto pool = std::make_shared<Pool>(std::vector<int>(threads - 1, -1), 50000);
  void* mapped = mmap(nullptr, kMemory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return std::printf("1 GiB of memory is needed\n"), 2;
  madvise(mapped, kMemory, MADV_HUGEPAGE);
  auto* memory = static_cast<std::uint8_t*>(mapped);
  for (std::size_t i = 0; i < kMemory; i += 4096) memory[i] = 1;
  double stream = 0;
  for (int i = 0; i < 6; ++i)
    stream = std::max(
        stream, kMemory / job_seconds(*pool, stream_job(memory, kMemory, i % 2, pool->worker_slots())) / 1e9);
  std::printf("%d threads, streaming %.1f GB/s\n", threads, stream);
  for (const Peak& peak : peaks()) std::printf("  %s %.0f GFLOP/s\n", peak.name, peak_gflops(*pool, peak));
  for (const NamedIsa& set : kIsas)
    if (kernels_for(set.isa)) measure(pool, set, memory, stream);
  munmap(mapped, kMemory);
  return 0;
}
