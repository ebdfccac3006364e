#include "products/amx_smt_sibling.h"

#include <x86intrin.h>

#include <atomic>

#include "products/amx_tiles.h"

namespace moesaic {
namespace {

constexpr int kMeasureInterval = 1 << 13;  // products: a fraction of a millisecond

std::atomic<SmtSibling> state_override{SmtSibling::measured};

std::uint64_t ticks_of_products() {
  _mm_lfence();
  const std::uint64_t start = __rdtsc();
  _mm_lfence();
  for (int i = 0; i < 16; ++i) _tile_dpbf16ps(0, 4, 6);
  _mm_lfence();
  return __rdtsc() - start;
}

// Times products with three tiles in use, then with all eight: the same time if the sibling is idle, almost
// twice as long if it is active.
bool measure() {
  alignas(64) static const std::uint8_t zeros[kTileBytes] = {};
  configure({16, 16, 16, 16, 16, 16, 16, 16});
  _tile_loadd(4, zeros, 64);
  _tile_loadd(6, zeros, 64);
  ticks_of_products();  // warm-up: an idle matrix unit starts slowly
  const std::uint64_t few = ticks_of_products();
  _tile_loadd(1, zeros, 64);
  _tile_loadd(2, zeros, 64);
  _tile_loadd(3, zeros, 64);
  _tile_loadd(5, zeros, 64);
  _tile_loadd(7, zeros, 64);
  return 2 * ticks_of_products() > 3 * few;
}

}  // namespace

void override_smt_sibling(SmtSibling state) { state_override.store(state, std::memory_order_relaxed); }

bool smt_sibling_active(int products) {
  const SmtSibling state = state_override.load(std::memory_order_relaxed);
  if (state != SmtSibling::measured) return state == SmtSibling::active;
  thread_local int left = 0;
  thread_local bool last = false;
  left -= products;
  if (left <= 0) {
    last = measure();
    left = kMeasureInterval;
  }
  return last;
}

}  // namespace moesaic
