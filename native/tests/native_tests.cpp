// The kernels and the pool without Python: native_tests [amx] [avx512] [avx2] [quick].
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "checks.h"
#include "layer/runner.h"

void test_arithmetic(const std::vector<moesaic::Isa>& isas, int cases);
void test_crowded();
void test_no_numbers(const std::vector<moesaic::Isa>& isas);
void test_pools(int rounds);
void test_ranges();
void test_shares();
void test_bad_input();

namespace {

struct Named {
  const char* name;
  moesaic::Isa isa;
};
constexpr Named kNamed[] = {{"amx", moesaic::Isa::amx},
                            {"avx512", moesaic::Isa::avx512},
                            {"avx2", moesaic::Isa::avx2}};

}  // namespace

int main(int count, char** arguments) {
  const std::vector<std::string> asked(arguments + 1, arguments + count);
  const auto is_asked = [&](const char* name) {
    for (const std::string& one : asked)
      if (one == name) return true;
    return false;
  };
  const bool quick = is_asked("quick"), all = int(asked.size()) == int(quick);
  std::vector<moesaic::Isa> isas;
  for (const Named& named : kNamed) {
    if (!all && !is_asked(named.name)) continue;
    if (moesaic::kernels_for(named.isa))
      isas.push_back(named.isa);
    else
      std::printf("this CPU has no %s: left out\n", named.name);
  }
  if (isas.empty()) {
    std::printf("nothing to test: name amx, avx512 or avx2, one that this CPU has\n");
    return 2;
  }
  test_arithmetic(isas, quick ? 240 : 1200);
  for (const moesaic::Isa isa : isas)
    if (isa == moesaic::Isa::amx) test_crowded();
  test_no_numbers(isas);
  test_pools(quick ? 3 : 30);
  test_ranges();
  test_shares();
  test_bad_input();
  std::printf("%d checks, %d failed\n", checks.load(), failures.load());
  return failures ? 1 : 0;
}
