// Many jobs, threads and pools: every result equals that of a single thread.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "checks.h"
#include "small_layer.h"

namespace {

constexpr int kHidden = 40, kInner = 24, kExperts = 3, kTokens = 5;

// A layer that any number of threads compute concurrently, each into its own result.
struct Shared {
  std::mt19937 random{7};
  moesaic_pool* pool = moesaic_pool_create(nullptr, 0, 0.0);
  moesaic_runner* runner = new_runner(pool);
  Experts experts{runner, Dtype::bf16, kHidden, kInner, kExperts, random};
  std::vector<float> hidden = normal(random, kTokens* kHidden, 1.0f);
  std::vector<float> weights = normal(random, kTokens * 2, 1.0f);
  std::vector<std::int64_t> ids{0, 1, 1, 2, 2, 0, 0, 1, 2, 1};
  std::vector<std::int32_t> listed{0, 1, 2};
  std::vector<float> expected = std::vector<float>(kTokens * kHidden);

  Shared() {
    const moesaic_layer layer = into(expected);
    check(moesaic_submit(runner, &layer) == 0 && moesaic_wait(runner, 1) == 0, "a pool without workers");
    moesaic_runner_destroy(runner);
    moesaic_pool_destroy(pool);
  }

  static moesaic_runner* new_runner(moesaic_pool* pool) {
    return moesaic_runner_create(pool, MOESAIC_BF16, kHidden, kInner, MOESAIC_SILU, MOESAIC_BEST, 4);
  }
  moesaic_layer into(std::vector<float>& out) const {
    return layer_of(experts, listed, hidden, ids, weights, kTokens, out);
  }
};

void compute(const Shared& shared, moesaic_pool* pool, int layers, bool help) {
  moesaic_runner* runner = Shared::new_runner(pool);
  for (int i = 0; i < layers; ++i) {
    std::vector<float> out(shared.expected.size(), -1.0f);
    moesaic_layer layer = shared.into(out);
    std::uint32_t flag = 0;
    std::int64_t ended_ns = 0;
    layer.done_flag = &flag, layer.done_value = std::uint32_t(i) + 1, layer.done_ns = &ended_ns;
    check(moesaic_submit(runner, &layer) == 0, "submitting");
    if (i % 3 == 0)
      while (!moesaic_done(runner)) std::this_thread::yield();
    if (i % 3 == 1)
      while (!std::atomic_ref(flag).load(std::memory_order_acquire)) std::this_thread::yield();
    if (i % 3 == 1) check(out == shared.expected && ended_ns, "a flag was raised before the layer's end");
    moesaic_wait(runner, help);
    check(out == shared.expected, "a layer differs from that of a single thread");
    check(flag == std::uint32_t(i) + 1, "a layer's end raised no flag");
  }
  moesaic_runner_destroy(runner);
}

moesaic_pool* new_pool(int workers, double spin_us) {
  const std::vector<std::int32_t> anywhere(workers, -1);
  return moesaic_pool_create(anywhere.data(), workers, spin_us);
}

template <class Function>
void concurrently(int threads, Function function) {
  std::vector<std::thread> all;
  for (int i = 0; i < threads; ++i) all.emplace_back(function, i);
  for (std::thread& one : all) one.join();
}

// Joining threads that a fork has not got would crash it when it ends.
void destroy_in_a_fork() {
  moesaic_pool* pool = new_pool(3, 20.0);
  const pid_t child = fork();
  if (child == 0) {
    moesaic_pool_destroy(pool);
    _exit(0);
  }
  int status = -1;
  check(waitpid(child, &status, 0) == child && status == 0, "a fork cannot destroy a pool");
  moesaic_pool_destroy(pool);
}

}  // namespace

void test_pools(int rounds) {
  destroy_in_a_fork();
  const Shared shared;
  for (int workers : {1, 2, 8}) {  // more threads than ring buffer slots
    moesaic_pool* pool = new_pool(workers, workers == 1 ? 0.0 : 20.0);
    concurrently(20, [&](int i) { compute(shared, pool, rounds, i % 2); });
    moesaic_pool_destroy(pool);
  }
  concurrently(4, [&](int i) {  // pools are created and destroyed concurrently
    for (int round = 0; round < rounds; ++round) {
      moesaic_pool* pool = new_pool(i, 5.0 * i);
      if (i) compute(shared, pool, 2, true);
      moesaic_pool_destroy(pool);
    }
  });
  for (int workers : {0, 1, 3}) {  // more jobs than slots, no wait before all are submitted
    for (int round = 0; round < rounds; ++round) {
      moesaic_pool* pool = new_pool(workers, 0.0);
      std::vector<std::vector<float>> outs(40, std::vector<float>(shared.expected.size()));
      std::vector<moesaic_runner*> runners;
      for (auto& out : outs) {
        runners.push_back(Shared::new_runner(pool));
        const moesaic_layer layer = shared.into(out);
        check(moesaic_submit(runners.back(), &layer) == 0, "submitting one of many");
      }
      moesaic_pool_destroy(pool);                                             // the runners keep it alive
      for (moesaic_runner* runner : runners) moesaic_runner_destroy(runner);  // waits for its job
      for (const auto& out : outs) check(out == shared.expected, "one of many jobs is wrong");
    }
  }
}
