// Every strip is taken exactly once, and a worker stays with its chunk.
#include "pool/affinity_scheduler.h"

#include <string>
#include <thread>
#include <vector>

#include "checks.h"

namespace {

using namespace moesaic;

void test_taken_once(int chunks, int workers) {
  std::vector<ChunkStrips> all;
  for (int c = 0; c < chunks; ++c) all.push_back({c, 5 + 7 * c, 1 + c % 4, 1 + 40 * c});
  AffinityScheduler scheduler(all, workers);
  std::vector<std::vector<StripRange>> taken(workers);
  std::atomic<int> tickets{0};
  std::vector<std::thread> threads;
  for (int w = 0; w < workers; ++w)
    threads.emplace_back([&, w] {
      while (tickets++ < scheduler.items()) taken[w].push_back(scheduler.take(w));
    });
  for (std::thread& thread : threads) thread.join();
  std::vector<std::vector<int>> times(chunks);
  for (int c = 0; c < chunks; ++c) times[c].resize(all[c].strips);
  for (const auto& by_one : taken)
    for (const StripRange& some : by_one)
      for (int s = 0; s < some.strips; ++s) ++times[some.chunk][some.strip + s];
  bool once = true;
  for (const auto& chunk : times)
    for (const int count : chunk) once &= count == 1;
  check(once,
        "every strip once: " + std::to_string(chunks) + " chunks, " + std::to_string(workers) + " workers");
}

void test_stays() {
  AffinityScheduler scheduler({{0, 10, 2, 16}, {1, 10, 2, 256}, {2, 10, 2, 80}}, 2);
  check(scheduler.items() == 15, "fifteen items");
  check(scheduler.take(0).chunk == 1, "most work first");
  check(scheduler.take(1).chunk == 1, "most work per worker, even next to another one");
  check(scheduler.take(0).chunk == 1 && scheduler.take(0).chunk == 1 && scheduler.take(1).chunk == 1,
        "stays while there are strips");
  check(scheduler.take(0).chunk == 2 && scheduler.take(1).chunk == 2, "then the next");
}

void test_spread() {
  AffinityScheduler scheduler({{0, 10, 2, 64}, {1, 10, 2, 64}}, 2);
  const int first = scheduler.take(0).chunk, second = scheduler.take(1).chunk;
  check(first != second, "equal chunks: one each");
}

}  // namespace

void test_affinity_scheduler() {
  for (const int chunks : {1, 3, 20})
    for (const int workers : {1, 2, 5}) test_taken_once(chunks, workers);
  test_stays();
  test_spread();
}
