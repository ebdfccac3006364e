#include "linear/linear.h"

#include <algorithm>
#include <string>

#include "layer/buffer_sizes.h"
#include "pool/work_stealing.h"

namespace moesaic {
namespace {

// Tokens are cut into chunks whose inputs fit into a cache; an item is some strips times all chunks, so that
// the strips are read from memory once.
class LinearJob : public Job {
 public:
  LinearJob(const Multiplier& multiplier, const PackedMatrix& matrix, const LinearCall& call,
            Workspace& workspace, int worker_slots)
      : multiplier_(multiplier),
        matrix_(matrix),
        call_(call),
        worker_slots_(worker_slots),
        chunks_(divide_up(call.tokens, kChunkTokens)),
        strips_per_item_(choose_strips()),
        ranges_(divide_up(matrix.layout.strips, strips_per_item_), worker_slots) {
    const int inputs = matrix.layout.inputs;
    const std::size_t sums = round_up(std::size_t(strips_per_item_) * chunk_tokens(0) * 16 * sizeof(float));
    worker_bytes_ = sums + kScratchBytes;
    const std::size_t panel = round_up(PanelBuffer::bytes(kChunkTokens, inputs));
    const std::size_t last = round_up(PanelBuffer::bytes(chunk_tokens(chunks_ - 1), inputs));
    workspace.reset(panel * (chunks_ - 1) + last + worker_bytes_ * worker_slots + 2 * kAlignment);
    std::uint8_t* memory = workspace.take(panel * (chunks_ - 1) + last);
    for (int c = 0; c < chunks_; ++c)
      panels_.push_back(PanelBuffer::at(memory + c * panel, chunk_tokens(c), inputs));
    workers_ = workspace.take(worker_bytes_ * worker_slots);
  }

  int phases() const override { return 2; }
  int items(int phase) override { return phase == 0 ? divide_up(call_.tokens, kTileTokens) : worker_slots_; }

  void run(int phase, int item, int worker) override {
    if (phase == 0) return fill(item);
    for (int number; (number = ranges_.take(worker)) >= 0;) multiply(number * strips_per_item_, worker);
  }
  void worker_done() override {
    if (multiplier_.kernels->release_tiles) multiplier_.kernels->release_tiles();
  }

 private:
  static constexpr std::size_t kItemBytes = 48 * 1024;  // of weights: amortises the cost of taking an item

  int chunk_tokens(int chunk) const { return std::min(kChunkTokens, call_.tokens - chunk * kChunkTokens); }

  int choose_strips() const {
    const MatrixLayout& matrix = matrix_.layout;
    const bool many = call_.tokens > kMemoryBoundTokens;
    const int limit = many ? max_strips(matrix) : int(kItemBytes / matrix.strip_bytes);
    const int fair = matrix.strips / ((many ? 3 : 6) * worker_slots_);
    return std::max(std::min({limit, fair, kMaxStrips}) / 2 * 2, 2);
  }

  void fill(int token_tile) {
    constexpr int kTiles = kChunkTokens / kTileTokens;
    const int chunk = token_tile / kTiles;
    const std::size_t size = call_.type == FloatType::f32 ? 4 : 2;
    const char* rows = static_cast<const char*>(call_.x) + chunk * kChunkTokens * call_.stride * size;
    fill_tile(multiplier_, matrix_.dtype, matrix_.layout, panels_[chunk], rows, call_.type, call_.stride,
              chunk_tokens(chunk), token_tile % kTiles);
  }

  void multiply(int first, int worker) {
    const MatrixLayout& matrix = matrix_.layout;
    const int count = std::min(strips_per_item_, matrix.strips - first);
    const std::uint8_t* at[kMaxStrips + 2];
    for (int s = 0; s < count; ++s) at[s] = matrix_.strip(first + s);
    const int next = std::min(first + count, matrix.strips - 1);
    at[count] = at[count + 1] = matrix_.strip(next);
    float* c = reinterpret_cast<float*>(workers_ + worker * worker_bytes_);
    std::uint8_t* scratch = workers_ + (worker + 1) * worker_bytes_ - kScratchBytes;
    for (int chunk = 0; chunk < chunks_; ++chunk) {
      const int tokens = chunk_tokens(chunk);
      const Panel panel = panels_[chunk].panel(matrix, tokens);
      multiplier_.product(matrix_.dtype, tokens)(at, count, matrix, panel, c, scratch);
      for (int t = 0; t < tokens; ++t) write(c + t * 16, tokens, chunk * kChunkTokens + t, first, count);
    }
  }

  void write(const float* c, int tokens, int token, int first, int count) {
    const int column = first * kStripOutputs;
    const int width = std::min(count * kStripOutputs, matrix_.layout.outputs - column);
    const std::size_t at = std::size_t(token) * matrix_.layout.outputs + column;
    if (call_.type == FloatType::bf16) {
      const auto* bias = static_cast<const std::uint16_t*>(call_.bias);
      multiplier_.kernels->step->round_strips(c, std::size_t(tokens) * 16, bias ? bias + column : nullptr,
                                              width, static_cast<std::uint16_t*>(call_.out) + at);
      return;
    }
    for (int i = 0; i < width; ++i) {  // not the networks that are to be fast
      float value = c[std::size_t(i / 16) * tokens * 16 + i % 16];
      if (call_.type == FloatType::f32) {
        if (call_.bias) value += static_cast<const float*>(call_.bias)[column + i];
        static_cast<float*>(call_.out)[at + i] = value;
      } else {
        _Float16 half;
        if (call_.bias) {
          __builtin_memcpy(&half, static_cast<const std::uint16_t*>(call_.bias) + column + i, 2);
          value += float(half);
        }
        half = _Float16(value);
        __builtin_memcpy(static_cast<std::uint16_t*>(call_.out) + at + i, &half, 2);
      }
    }
  }

  const Multiplier multiplier_;
  const PackedMatrix matrix_;
  const LinearCall call_;
  const int worker_slots_, chunks_, strips_per_item_;
  WorkStealingRanges ranges_;
  std::vector<PanelBuffer> panels_;
  std::uint8_t* workers_ = nullptr;
  std::size_t worker_bytes_ = 0;
};

void check_matrix(const PackedMatrix& matrix) {
  const MatrixLayout& layout = matrix.layout;
  constexpr int kMaxSize = 1 << 22;
  if (layout.outputs < 1 || layout.inputs < 1 || layout.outputs > kMaxSize || layout.inputs > kMaxSize)
    throw InvalidCall("a matrix of " + std::to_string(layout.outputs) + " x " +
                      std::to_string(layout.inputs) + " cannot be multiplied");
  if (!matrix.data || reinterpret_cast<std::uintptr_t>(matrix.data) % kAlignment)
    throw InvalidCall("a packed matrix begins at a multiple of " + std::to_string(kAlignment) + " bytes");
}

}  // namespace

LinearRunner::LinearRunner(std::shared_ptr<Pool> pool, Isa isa, int tiles_from_bf16, int tiles_from_int8,
                           int tiles_from_int4)
    : pool_(std::move(pool)),
      multiplier_{kernels_for(isa), {tiles_from_bf16, tiles_from_int8, tiles_from_int4}} {
  if (!multiplier_.kernels) throw InvalidCall("this CPU does not support the instruction set asked for");
}

void LinearRunner::pack(const MatrixView& from, const PackedMatrix& to) {
  check_matrix(to);
  if (!from.data || from.stride < std::size_t(to.layout.inputs))
    throw InvalidCall("a matrix to pack is missing, or its rows overlap");
  std::atomic<int> non_finite{0};
  auto job = pack_matrix_job(to.dtype, to.layout, from, const_cast<std::uint8_t*>(to.data), &non_finite);
  pool_->wait(pool_->submit(job), true);
  if (non_finite.load()) throw std::domain_error("a matrix has infinities or nan");
}

void LinearRunner::run(const PackedMatrix& matrix, const LinearCall& call) {
  check_matrix(matrix);
  if (call.tokens < 0 || (call.tokens && (!call.x || !call.out)))
    throw InvalidCall("inputs or result are missing");
  if (call.tokens > 1 && call.stride < std::size_t(matrix.layout.inputs))
    throw InvalidCall("rows of inputs overlap");
  if (call.tokens == 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  pool_->wait(pool_->submit(std::make_shared<LinearJob>(multiplier_, matrix, call, workspace_,
                                                        pool_->worker_slots())),
              true);
}

}  // namespace moesaic
