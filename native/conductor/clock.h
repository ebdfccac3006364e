// Time as the conductor tells it: nanoseconds of the steady clock.
#pragma once

#include <chrono>
#include <cstdint>

namespace moesaic {

inline std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace moesaic
