// A few tokens times one or several packed matrices that have the same inputs, as one phase of a job:
// limited by memory bandwidth. Workers read contiguous ranges of strips, with work stealing.
#pragma once

#include <algorithm>
#include <vector>

#include "layer/buffer_sizes.h"
#include "linear/packed_matrix.h"
#include "pool/work_stealing.h"

namespace moesaic {

// rows[token] = bf16(panel times matrix + bias)
struct PhaseProduct {
  const PackedMatrix* matrix;
  const std::uint16_t* bias;  // or null
  std::uint16_t* rows;
  std::size_t stride;  // values from token to token
};

class ProductPhase {
 public:
  static constexpr int kMaxProducts = 3;

  ProductPhase(const Multiplier& multiplier, int workers)
      : multiplier_(multiplier), workers_(workers), ranges_(0, workers) {}

  // All matrices have one precision and the same number of inputs. While no worker runs.
  void begin(const PhaseProduct* products, int count, const Panel& panel) {
    std::copy(products, products + count, products_);
    count_ = count;
    panel_ = panel;
    items_ = 0;
    for (int i = 0; i < count; ++i) {
      strips_per_item_[i] = strips_per_item(products[i].matrix->layout, products, count);
      first_item_[i] = items_;
      items_ += divide_up(products[i].matrix->layout.strips, strips_per_item_[i]);
    }
    ranges_.reset(items_);
  }

  // What the first product of every worker's next phase reads, prefetched at the end of this one.
  void then(const PackedMatrix* matrix) { next_ = matrix; }

  static std::size_t worker_bytes(int tokens) {
    return round_up(std::size_t(kMaxStrips) * tokens * 16 * sizeof(float)) + kScratchBytes;
  }

  // `memory`: worker_bytes of the worker.
  void run(int worker, std::uint8_t* memory) {
    for (int number; (number = ranges_.take(worker)) >= 0;) run_item(number, worker, memory);
  }

 private:
  static constexpr std::size_t kItemBytes = 48 * 1024;  // of weights: amortises the cost of taking an item
  static constexpr int kItemsPerWorker = 4;             // at least, where there are enough strips

  struct Strips {
    int product, strip, count;
  };

  int strips_per_item(const MatrixLayout& matrix, const PhaseProduct* products, int count) const {
    int all = 0;
    for (int i = 0; i < count; ++i) all += products[i].matrix->layout.strips;
    const int fair = all / (kItemsPerWorker * workers_);
    const int wanted = std::min({int(kItemBytes / matrix.strip_bytes), fair, kMaxStrips});
    return std::max(wanted / 2 * 2, 2);
  }

  Strips strips_of(int number) const {
    int i = count_ - 1;
    while (number < first_item_[i]) --i;
    const int strip = (number - first_item_[i]) * strips_per_item_[i];
    return {i, strip, std::min(strips_per_item_[i], products_[i].matrix->layout.strips - strip)};
  }

  // The first strip that a worker reads after this item, as far as is known.
  const std::uint8_t* next_strip(int worker, const std::uint8_t* fallback) const {
    if (const int number = ranges_.peek(worker); number >= 0) {
      const Strips item = strips_of(number);
      return products_[item.product].matrix->strip(item.strip);
    }
    if (!next_) return fallback;
    const int strips = next_->layout.strips;
    return next_->strip(int(std::int64_t(strips) * worker / workers_));
  }

  void run_item(int number, int worker, std::uint8_t* memory) {
    const Strips item = strips_of(number);
    const PhaseProduct& product = products_[item.product];
    const MatrixLayout& matrix = product.matrix->layout;
    const std::uint8_t* at[kMaxStrips + 2];
    for (int s = 0; s < item.count; ++s) at[s] = product.matrix->strip(item.strip + s);
    at[item.count] = next_strip(worker, at[0]);
    at[item.count + 1] = at[item.count] + matrix.strip_bytes;
    float* c = reinterpret_cast<float*>(memory);
    std::uint8_t* scratch = memory + worker_bytes(panel_.tokens) - kScratchBytes;
    const Dtype dtype = product.matrix->dtype;
    multiplier_.product(dtype, panel_.tokens)(at, item.count, matrix, panel_, c, scratch);
    const int first = item.strip * kStripOutputs;
    const int width = std::min(item.count * kStripOutputs, matrix.outputs - first);
    for (int t = 0; t < panel_.tokens; ++t)
      multiplier_.kernels->step->round_strips(c + t * 16, std::size_t(panel_.tokens) * 16,
                                              product.bias ? product.bias + first : nullptr, width,
                                              product.rows + t * product.stride + first);
  }

  const Multiplier multiplier_;
  const int workers_;
  PhaseProduct products_[kMaxProducts] = {};
  int strips_per_item_[kMaxProducts] = {}, first_item_[kMaxProducts] = {};
  int count_ = 0, items_ = 0;
  Panel panel_{};
  const PackedMatrix* next_ = nullptr;
  WorkStealingRanges ranges_;
};

}  // namespace moesaic
