// A few tokens times one or several packed matrices that have the same inputs, as one phase of a job:
// limited by memory bandwidth. Workers read contiguous ranges of strips, with work stealing.
#pragma once

#include <algorithm>
#include <vector>

#include "layer/buffer_sizes.h"
#include "linear/packed_matrix.h"
#include "pool/read_ahead.h"
#include "pool/work_stealing.h"

namespace moesaic {

// rows[token] = bf16(panel times matrix + bias), or with `add` bf16(rows[token] + that)
struct PhaseProduct {
  const PackedMatrix* matrix;
  const std::uint16_t* bias;  // or null
  std::uint16_t* rows;
  std::size_t stride;  // values from token to token
  bool add = false;
};

// How the strips of a phase's matrices are cut into items, matrix after matrix.
class ProductItems {
 public:
  static constexpr int kMaxProducts = 3;

  struct Strips {
    int product, strip, count;
  };

  ProductItems() = default;
  ProductItems(const PhaseProduct* products, int products_count, int workers) : products_(products_count) {
    int all = 0;
    for (int i = 0; i < products_; ++i) all += strips_[i] = products[i].matrix->layout.strips;
    const int fair = all / (kItemsPerWorker * workers);
    for (int i = 0; i < products_; ++i) {
      const int limit = int(kItemBytes / products[i].matrix->layout.strip_bytes);
      strips_per_item_[i] = std::max(std::min({limit, fair, kMaxStrips}) / 2 * 2, 2);
      first_item_[i] = items_;
      items_ += divide_up(strips_[i], strips_per_item_[i]);
    }
  }

  int count() const { return items_; }
  Strips strips_of(int number) const {
    int i = products_ - 1;
    while (number < first_item_[i]) --i;
    const int strip = (number - first_item_[i]) * strips_per_item_[i];
    return {i, strip, std::min(strips_per_item_[i], strips_[i] - strip)};
  }

 private:
  static constexpr std::size_t kItemBytes = 48 * 1024;  // of weights: amortises the cost of taking an item
  static constexpr int kItemsPerWorker = 4;             // at least, where there are enough strips

  int products_ = 0, items_ = 0;
  int strips_[kMaxProducts] = {}, strips_per_item_[kMaxProducts] = {}, first_item_[kMaxProducts] = {};
};

class ProductPhase {
 public:
  ProductPhase(const Multiplier& multiplier, int workers)
      : multiplier_(multiplier), workers_(workers), ranges_(0, workers) {}

  // All matrices have one precision and the same number of inputs. While no worker runs.
  void begin(const PhaseProduct* products, int count, const Panel& panel) {
    std::copy(products, products + count, products_);
    panel_ = panel;
    items_ = ProductItems(products, count, workers_);
    ranges_.reset(items_.count());
  }

  // What a worker reads first in a phase with these products.
  static void read_ahead(const PhaseProduct* products, int count, int worker, int workers, ReadAhead& to) {
    const ProductItems items(products, count, workers);
    const int end = WorkStealingRanges::split(items.count(), worker + 1, workers);
    for (int i = WorkStealingRanges::split(items.count(), worker, workers); i < end && !to.full(); ++i) {
      const ProductItems::Strips item = items.strips_of(i);
      const PackedMatrix& matrix = *products[item.product].matrix;
      to.add(matrix.strip(item.strip), item.count * matrix.layout.strip_bytes);
    }
  }

  static std::size_t worker_bytes(int tokens) {
    return round_up(std::size_t(kMaxStrips) * tokens * 16 * sizeof(float)) + kScratchBytes;
  }

  // `memory`: worker_bytes of the worker; `next`: what it reads first in the next phase, or null.
  void run(int worker, std::uint8_t* memory, const std::uint8_t* next) {
    for (int number; (number = ranges_.take(worker)) >= 0;) run_item(number, worker, memory, next);
  }

 private:
  // The first strip that a worker reads after this item, as far as is known.
  const std::uint8_t* next_strip(int worker, const std::uint8_t* after) const {
    const int number = ranges_.peek(worker);
    if (number < 0) return after;
    const ProductItems::Strips item = items_.strips_of(number);
    return products_[item.product].matrix->strip(item.strip);
  }

  void run_item(int number, int worker, std::uint8_t* memory, const std::uint8_t* next) {
    const ProductItems::Strips item = items_.strips_of(number);
    const PhaseProduct& product = products_[item.product];
    const MatrixLayout& matrix = product.matrix->layout;
    const std::uint8_t* at[kMaxStrips + 2];
    for (int s = 0; s < item.count; ++s) at[s] = product.matrix->strip(item.strip + s);
    at[item.count] = next_strip(worker, next ? next : at[0]);
    at[item.count + 1] = at[item.count] + matrix.strip_bytes;
    float* c = reinterpret_cast<float*>(memory);
    std::uint8_t* scratch = memory + worker_bytes(panel_.tokens) - kScratchBytes;
    const Dtype dtype = product.matrix->dtype;
    multiplier_.product(dtype, panel_.tokens)(at, item.count, matrix, panel_, c, scratch);
    const int first = item.strip * kStripOutputs;
    const int width = std::min(item.count * kStripOutputs, matrix.outputs - first);
    for (int t = 0; t < panel_.tokens; ++t)
      write(product, c + t * 16, first, width, product.rows + t * product.stride + first);
  }

  // Columns [first, first + width) of one token.
  void write(const PhaseProduct& product, const float* c, int first, int width, std::uint16_t* to) const {
    const StepKernels& step = *multiplier_.kernels->step;
    std::uint16_t rounded[kMaxStrips * kStripOutputs];
    const std::uint16_t* bias = product.bias ? product.bias + first : nullptr;
    step.round_strips(c, std::size_t(panel_.tokens) * 16, bias, width, product.add ? rounded : to);
    if (product.add) step.add_residual(to, rounded, nullptr, 1.0f, width);
  }

  const Multiplier multiplier_;
  const int workers_;
  PhaseProduct products_[ProductItems::kMaxProducts] = {};
  ProductItems items_;
  Panel panel_{};
  WorkStealingRanges ranges_;
};

}  // namespace moesaic
