// The kernels and the pool without Python: native_tests [instruction sets] [quick].
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "checks.h"
#include "layer/runner.h"

void test_arithmetic(const std::vector<moesaic::Isa>& isas, int cases);
void test_smt_sibling();
void test_non_finite(const std::vector<moesaic::Isa>& isas);
void test_pools(int rounds);
void test_work_stealing();
void test_read_ahead();
void test_expert_read_ahead();
void test_affinity_scheduler();
void test_batch_rows(const std::vector<moesaic::Isa>& isas, int rounds);
void test_bad_input();
void test_linear(const std::vector<moesaic::Isa>& isas, int cases);
void test_rows(const std::vector<moesaic::Isa>& isas);
void test_attention(const std::vector<moesaic::Isa>& isas, int cases);
void test_kv_codes(const std::vector<moesaic::Isa>& isas, int cases);
void test_decode_steps(const std::vector<moesaic::Isa>& isas, int rounds);

int main(int count, char** arguments) {
  const std::vector<std::string> names(arguments + 1, arguments + count);
  const auto is_named = [&](const char* name) {
    for (const std::string& one : names)
      if (one == name) return true;
    return false;
  };
  const bool quick = is_named("quick"), all = int(names.size()) == int(quick);
  std::vector<moesaic::Isa> isas;
  for (const moesaic::NamedIsa& named : moesaic::kIsas) {
    if (!all && !is_named(named.name)) continue;
    if (moesaic::kernels_for(named.isa))
      isas.push_back(named.isa);
    else
      std::printf("this CPU has no %s: skipped\n", named.name);
  }
  if (isas.empty()) {
    std::printf("nothing to test: name an instruction set that this CPU has\n");
    return 2;
  }
  test_arithmetic(isas, quick ? 240 : 1200);
  for (const moesaic::Isa isa : isas)
    if (isa == moesaic::Isa::amx) test_smt_sibling();
  test_non_finite(isas);
  test_pools(quick ? 3 : 30);
  test_work_stealing();
  test_read_ahead();
  test_expert_read_ahead();
  test_affinity_scheduler();
  test_batch_rows(isas, quick ? 10 : 100);
  test_bad_input();
  test_linear(isas, quick ? 27 : 135);
  test_rows(isas);
  test_attention(isas, quick ? 10 : 60);
  test_kv_codes(isas, quick ? 5 : 30);
  test_decode_steps(isas, quick ? 1 : 5);
  std::printf("%d checks, %d failed\n", checks.load(), failures.load());
  return failures ? 1 : 0;
}
