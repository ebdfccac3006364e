// What a worker prefetches while it waits: a few lines at a time, a quarter of its L2 cache, then nothing.
#include "pool/read_ahead.h"

#include <vector>

#include "checks.h"

using namespace moesaic;

namespace {

int calls_until_done(ReadAhead& ahead) {
  int calls = 0;
  while (ahead.prefetch_some()) ++calls;
  return calls;
}

}  // namespace

void test_read_ahead() {
  std::vector<std::uint8_t> memory(1 << 16);
  ReadAhead ahead;
  check(!ahead.prefetch_some(), "nothing was added");
  ahead.restart();
  ahead.add(memory.data(), 100 * 64);
  ahead.add(memory.data() + 100 * 64, 28 * 64);  // contiguous: 128 lines in all
  check(ahead.last() == memory.data(), "contiguous ranges are one");
  ahead.add(memory.data() + 20000, 2 * 64, 512, 16);  // 32 lines more
  check(ahead.last() == memory.data() + 20000, "what was added last");
  check(calls_until_done(ahead) == 10, "160 lines, 16 a call");
  check(!ahead.prefetch_some(), "all were prefetched");
  ahead.restart();
  for (int i = 0; i < 100 && !ahead.full(); ++i) ahead.add(memory.data(), std::size_t(1) << 24);
  check(ahead.full(), "there is a limit");
  ahead.add(memory.data(), 64);
  check(calls_until_done(ahead) * 16 * 64 <= 1 << 24, "no more than the limit");
  ahead.restart();
  check(!ahead.full() && !ahead.prefetch_some(), "forgotten");
  const volatile std::size_t no_width = 0;  // of rotary keys; not known to the compiler
  ahead.add(memory.data(), no_width, 512, 16);
  check(!ahead.last() && !ahead.prefetch_some(), "rows of nothing are nothing");
}
