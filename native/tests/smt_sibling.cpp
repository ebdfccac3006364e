// AMX products give the same bits with an idle and with an active SMT sibling.
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "checks.h"
#include "products/amx_smt_sibling.h"
#include "products/cpu_features.h"
#include "products/kernels.h"

namespace {

using namespace moesaic;

// Bytes that are small numbers in every precision: as bf16 at most 2 in magnitude, as are the codes.
std::uint8_t* fill(std::vector<std::uint8_t>& memory, std::size_t bytes, std::mt19937& random) {
  memory.resize(bytes + kAlignment);
  std::uint8_t* at = memory.data();
  while (reinterpret_cast<std::uintptr_t>(at) % kAlignment) ++at;
  for (std::size_t i = 0; i + 1 < bytes; i += 2) {
    at[i] = std::uint8_t(random());
    at[i + 1] = std::uint8_t((random() & 0x80) | (random() % 0x40));
  }
  return at;
}

std::vector<float> product(Dtype dtype, SmtSibling sibling, const std::vector<const std::uint8_t*>& strips,
                           int count, const MatrixLayout& matrix, const Panel& panel) {
  std::vector<float> c(std::size_t(count) * panel.tokens * 16, -1.0f);
  std::vector<std::uint8_t> scratch_memory(kScratchBytes + kAlignment);
  std::uint8_t* scratch = scratch_memory.data();
  while (reinterpret_cast<std::uintptr_t>(scratch) % kAlignment) ++scratch;
  override_smt_sibling(sibling);
  amx_kernels()->tiles[int(dtype)](strips.data(), count, matrix, panel, c.data(), scratch);
  amx_kernels()->release_tiles();
  override_smt_sibling(SmtSibling::measured);
  return c;
}

void compare(Dtype dtype, int tokens, int inputs, int count, std::mt19937& random) {
  const MatrixLayout matrix(dtype, count * kStripOutputs, inputs);
  std::vector<std::uint8_t> weights, inputs_memory;
  const std::uint8_t* first = fill(weights, count * matrix.strip_bytes, random);
  std::vector<const std::uint8_t*> strips;
  for (int s = 0; s < count; ++s) strips.push_back(first + s * matrix.strip_bytes);
  strips.insert(strips.end(), 2, first);  // prefetched
  const int groups = dtype == Dtype::int8 ? matrix.groups : 0;
  const std::vector<float> scales(std::size_t(tokens) * groups + 1, 0.5f);
  const Panel panel{fill(inputs_memory, panel_bytes(tokens, matrix.tiles), random),
                    scales.data(),
                    nullptr,
                    tokens,
                    matrix.tiles,
                    groups};
  const auto idle = product(dtype, SmtSibling::idle, strips, count, matrix, panel);
  const auto active = product(dtype, SmtSibling::active, strips, count, matrix, panel);
  bool numbers = false;
  for (const float value : idle) numbers |= value != 0.0f && value != -1.0f;
  check(numbers && !std::memcmp(idle.data(), active.data(), idle.size() * sizeof(float)),
        "a product with an active SMT sibling: dtype " + std::to_string(int(dtype)) + " tokens " +
            std::to_string(tokens) + " inputs " + std::to_string(inputs) + " strips " +
            std::to_string(count));
}

}  // namespace

void test_smt_sibling() {
  if (!moesaic::cpu_features().amx) return;
  std::mt19937 random(7);
  for (const Dtype dtype : {Dtype::bf16, Dtype::int8, Dtype::int4})
    for (const int tokens : {17, 32, 33, 48, 100, 256})
      for (const int inputs : {64, 700, 2500})
        for (const int count : {1, 2, 5}) compare(dtype, tokens, inputs, count, random);
}
