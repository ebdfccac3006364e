// Every item is taken exactly once, even if some workers never run; workers start with their own range.
#include "pool/work_stealing.h"

#include <string>
#include <thread>
#include <vector>

#include "checks.h"

namespace {

using namespace moesaic;

void test_taken_once(int items, int workers, int present) {
  WorkStealingRanges ranges(items, workers);
  std::vector<std::vector<int>> taken(workers);
  std::vector<std::thread> threads;
  for (int w = 0; w < present; ++w)
    threads.emplace_back([&, w] {
      for (int item; (item = ranges.take(w)) >= 0;) {
        taken[w].push_back(item);
        if (w == 0) std::this_thread::yield();  // one is slower than the others
      }
    });
  for (std::thread& thread : threads) thread.join();
  std::vector<int> times(items);
  for (const auto& by_one : taken)
    for (const int item : by_one) ++times[item];
  bool once = true;
  for (const int count : times) once &= count == 1;
  check(once, "every item once: " + std::to_string(items) + " items, " + std::to_string(present) + " of " +
                  std::to_string(workers) + " workers");
}

void test_order() {
  WorkStealingRanges ranges(10, 2);
  check(ranges.peek(0) == 0 && ranges.peek(1) == 5, "a half each");
  check(ranges.take(0) == 0 && ranges.take(0) == 1 && ranges.peek(0) == 2, "one after the other");
  for (int item = 5; item < 10; ++item) check(ranges.take(1) == item, "its own range first");
  check(ranges.peek(1) == -1, "its own range is empty");
  check(ranges.take(1) == 3 && ranges.peek(1) == 4, "then it steals the second half of the longest range");
  check(ranges.take(0) == 2 && ranges.take(0) == 4 && ranges.take(0) == -1,
        "stolen items may be stolen back");
  check(ranges.take(1) == -1, "until nothing is left");
}

void test_bounds() {
  WorkStealingRanges ranges(10, 3);
  ranges.reset(std::vector<int>{0, 7, 7, 10});
  check(ranges.peek(0) == 0 && ranges.peek(1) == -1 && ranges.peek(2) == 7, "ranges as they are given");
  check(ranges.take(1) == 3 && ranges.take(2) == 7 && ranges.take(0) == 0, "one without any steals");
}

}  // namespace

void test_work_stealing() {
  test_order();
  test_bounds();
  for (const int items : {0, 1, 7, 100, 5000})
    for (const int workers : {1, 3, 8}) {
      test_taken_once(items, workers, workers);
      test_taken_once(items, workers, 1);
    }
}
