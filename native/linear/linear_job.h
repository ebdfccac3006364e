// One call of `LinearRunner` as a job: the inputs are converted into panels, by token tile; then every item
// multiplies some strips of one matrix with one chunk of tokens.
#pragma once

#include "layer/buffer_sizes.h"
#include "linear/linear.h"
#include "pool/work_stealing.h"

namespace moesaic {

// Equal chunks: a short last one would be multiplied in vectors, and its worker would wait for the others.
struct TokenChunks {
  int tokens, size, count;

  TokenChunks(int all, int inputs, std::size_t panel_bytes) : tokens(all) {
    const int fitting = int(panel_bytes / (std::size_t(divide_up(inputs, 32)) * kRowBytes));
    const int largest = std::clamp(fitting / kTileTokens * kTileTokens, 4 * kTileTokens, kChunkTokens);
    const int wanted = divide_up(all, largest);
    size = divide_up(divide_up(all, wanted), kTileTokens) * kTileTokens;
    count = divide_up(all, size);
  }
  int tokens_of(int chunk) const { return std::min(size, tokens - chunk * size); }
};

// Items are numbered chunk by chunk and workers begin with ranges of adjacent ones: a worker keeps to a
// chunk, whose panel stays in its L2 cache while strips, which are prefetched, pass by. The other way round
// every item would read all panels again, from the other cores' caches.
class LinearJob : public Job {
 public:
  LinearJob(const Multiplier& multiplier, const LinearBlocking& blocking, const LinearCall& call,
            const std::vector<LinearProduct>& products, Workspace& workspace, int worker_slots);

  int phases() const override { return 2; }
  int items(int phase) override { return phase == 0 ? divide_up(call_.tokens, kTileTokens) : worker_slots_; }
  void run(int phase, int item, int worker) override;
  void worker_done() override {
    if (multiplier_.kernels->release_tiles) multiplier_.kernels->release_tiles();
  }

 private:
  static constexpr std::size_t kItemBytes = 48 * 1024;  // of weights: amortises the cost of taking an item

  struct Item {
    int chunk, product, strip, strips;
  };

  const MatrixLayout& layout(int product) const { return products_[product].matrix.layout; }
  Dtype dtype() const { return products_[0].matrix.dtype; }
  int inputs() const { return layout(0).inputs; }
  int strips_per_item(const LinearBlocking& blocking) const;
  void take_memory(Workspace& workspace);
  Item item_of(int number) const;
  void fill(int token_tile);
  void multiply(int number, int worker);
  void write(const Item& item, const float* sums);
  void write_row(const LinearProduct& product, const float* c, std::size_t c_stride, int token, int column,
                 int width);

  const Multiplier multiplier_;
  const LinearCall call_;
  const std::vector<LinearProduct> products_;
  const int worker_slots_;
  const TokenChunks chunks_;
  const int strips_per_item_;
  std::vector<int> first_item_;  // of each product within a chunk, and at the end their number
  WorkStealingRanges ranges_;
  std::vector<PanelBuffer> panels_;
  std::uint8_t* workers_ = nullptr;
  std::size_t worker_bytes_ = 0;
};

}  // namespace moesaic
