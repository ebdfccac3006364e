#include "linear/linear_job.h"

#include <algorithm>

namespace moesaic {

LinearJob::LinearJob(const Multiplier& multiplier, const LinearBlocking& blocking, const LinearCall& call,
                     const std::vector<LinearProduct>& products, Workspace& workspace, int worker_slots)
    : multiplier_(multiplier),
      call_(call),
      products_(products),
      worker_slots_(worker_slots),
      chunks_(call.tokens, inputs(), blocking.panel_bytes),
      strips_per_item_(strips_per_item(blocking)),
      ranges_(0, worker_slots) {
  int items = 0;
  for (const LinearProduct& product : products_) {
    first_item_.push_back(items);
    items += divide_up(product.matrix.layout.strips, strips_per_item_);
  }
  first_item_.push_back(items);
  ranges_.reset(items * chunks_.count);
  take_memory(workspace);
}

void LinearJob::take_memory(Workspace& workspace) {
  const std::size_t panel = round_up(PanelBuffer::bytes(chunks_.size, inputs()));
  const std::size_t sums = round_up(std::size_t(strips_per_item_) * chunks_.tokens_of(0) * 16 * sizeof(float));
  worker_bytes_ = sums + kScratchBytes;
  workspace.reset(panel * chunks_.count + worker_bytes_ * worker_slots_ + 2 * kAlignment);
  std::uint8_t* memory = workspace.take(panel * chunks_.count);
  for (int c = 0; c < chunks_.count; ++c)
    panels_.push_back(PanelBuffer::at(memory + c * panel, chunks_.tokens_of(c), inputs()));
  workers_ = workspace.take(worker_bytes_ * worker_slots_);
}

// Few tokens: enough weights to amortise the cost of taking an item, and six items for every worker. Many:
// three, of as many strips as the sums' cache allows.
int LinearJob::strips_per_item(const LinearBlocking& blocking) const {
  const bool many = call_.tokens > kMemoryBoundTokens;
  int all = 0;
  for (const LinearProduct& product : products_) all += product.matrix.layout.strips * chunks_.count;
  const int limit = many ? blocking.strips : int(kItemBytes / layout(0).strip_bytes);
  const int fair = all / ((many ? 3 : 6) * worker_slots_);
  return std::max(std::min({limit, fair, kMaxStrips}) / 2 * 2, 2);
}

void LinearJob::run(int phase, int item, int worker) {
  if (phase == 0) return fill(item);
  for (int number; (number = ranges_.take(worker)) >= 0;) multiply(number, worker);
}

LinearJob::Item LinearJob::item_of(int number) const {
  const int items = first_item_.back(), within = number % items;
  int product = int(products_.size()) - 1;
  while (within < first_item_[product]) --product;
  const int strip = (within - first_item_[product]) * strips_per_item_;
  return {number / items, product, strip, std::min(strips_per_item_, layout(product).strips - strip)};
}

void LinearJob::fill(int token_tile) {
  const int tiles = chunks_.size / kTileTokens, chunk = token_tile / tiles;
  const std::size_t size = call_.type == FloatType::f32 ? 4 : 2;
  const char* rows = static_cast<const char*>(call_.x) + chunk * chunks_.size * call_.stride * size;
  fill_tile(multiplier_, dtype(), layout(0), panels_[chunk], rows, call_.type, call_.stride,
            chunks_.tokens_of(chunk), token_tile % tiles);
}

void LinearJob::multiply(int number, int worker) {
  const Item item = item_of(number);
  const PackedMatrix& matrix = products_[item.product].matrix;
  const std::uint8_t* at[kMaxStrips + 2];
  for (int s = 0; s < item.strips; ++s) at[s] = matrix.strip(item.strip + s);
  const int following = ranges_.peek(worker);
  const Item next = following < 0 ? item : item_of(following);
  at[item.strips] = products_[next.product].matrix.strip(next.strip);
  at[item.strips + 1] = at[item.strips] + matrix.layout.strip_bytes;
  float* sums = reinterpret_cast<float*>(workers_ + worker * worker_bytes_);
  std::uint8_t* scratch = workers_ + (worker + 1) * worker_bytes_ - kScratchBytes;
  const int tokens = chunks_.tokens_of(item.chunk);
  const Panel panel = panels_[item.chunk].panel(matrix.layout, tokens);
  multiplier_.product(matrix.dtype, tokens)(at, item.strips, matrix.layout, panel, sums, scratch);
  write(item, sums);
}

void LinearJob::write(const Item& item, const float* sums) {
  const int tokens = chunks_.tokens_of(item.chunk), column = item.strip * kStripOutputs;
  const int width = std::min(item.strips * kStripOutputs, layout(item.product).outputs - column);
  for (int t = 0; t < tokens; ++t)
    write_row(products_[item.product], sums + t * 16, std::size_t(tokens) * 16,
              item.chunk * chunks_.size + t, column, width);
}

void LinearJob::write_row(const LinearProduct& product, const float* c, std::size_t c_stride, int token,
                          int column, int width) {
  const std::size_t at = std::size_t(token) * product.matrix.layout.outputs + column;
  if (call_.type == FloatType::bf16) {
    const auto* bias = static_cast<const std::uint16_t*>(product.bias);
    multiplier_.kernels->step->round_strips(c, c_stride, bias ? bias + column : nullptr, width,
                                            static_cast<std::uint16_t*>(product.out) + at);
    return;
  }
  for (int i = 0; i < width; ++i) {  // not the networks that are to be fast
    float value = c[std::size_t(i / 16) * c_stride + i % 16];
    if (call_.type == FloatType::f32) {
      if (product.bias) value += static_cast<const float*>(product.bias)[column + i];
      static_cast<float*>(product.out)[at + i] = value;
    } else {
      _Float16 half;
      if (product.bias) {
        __builtin_memcpy(&half, static_cast<const std::uint16_t*>(product.bias) + column + i, 2);
        value += float(half);
      }
      half = _Float16(value);
      __builtin_memcpy(static_cast<std::uint16_t*>(product.out) + at + i, &half, 2);
    }
  }
}

}  // namespace moesaic
