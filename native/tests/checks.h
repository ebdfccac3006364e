// Plain checks: they print what failed and are counted.
#pragma once

#include <atomic>
#include <cstdio>
#include <string>

inline std::atomic<int> failures{0}, checks{0};

inline void check(bool holds, const std::string& what) {
  ++checks;
  if (holds) return;
  if (++failures <= 20) std::printf("FAILED: %s\n", what.c_str());
}
