#include "rows/rows.h"

#include <algorithm>
#include <cstring>

#include "api/codes.h"

namespace moesaic {
namespace {

constexpr int kMaxRowsAtOnce = 8;  // router: so many tokens share what is read of the gate
constexpr int kRouterRows = 4;     // of the gate, at once: they stay in L1

// `compute(first, count)` for all rows, some at a time.
template <class Rows>
class RowsJob : public Job {
 public:
  RowsJob(int rows, int workers, const Rows& compute)
      : rows_(rows), at_once_(std::clamp(rows / (3 * workers), 1, kMaxRowsAtOnce)), compute_(compute) {}

  int phases() const override { return 1; }
  int items(int) override { return divide_up(rows_, at_once_); }
  void run(int, int item, int) override {
    const int first = item * at_once_;
    compute_(first, std::min(at_once_, rows_ - first));
  }

 private:
  const int rows_, at_once_;
  const Rows compute_;
};

std::size_t bytes_of(FloatType type) { return type == FloatType::f32 ? 4 : 2; }

const void* row_of(const void* rows, FloatType type, std::size_t stride, int row) {
  return static_cast<const char*>(rows) + row * stride * bytes_of(type);
}
void* row_of(void* rows, FloatType type, std::size_t stride, int row) {
  return static_cast<char*>(rows) + row * stride * bytes_of(type);
}

// One row of `sum` = x + added.
const void* add(const Kernels& kernels, const void* x, const void* added, int width, void* sum) {
  std::memcpy(sum, x, std::size_t(width) * 2);
  kernels.step->add_residual(static_cast<std::uint16_t*>(sum), static_cast<const std::uint16_t*>(added), nullptr,
                             1.0f, width);
  return sum;
}

void norm_row(const Kernels& kernels, const NormCall& call, int row) {
  const std::size_t width = call.width;
  const void* x = row_of(call.x, call.type, call.stride, row);
  if (call.added)
    x = add(kernels, x, row_of(call.added, call.type, width, row), call.width,
            row_of(call.sum, call.type, width, row));
  kernels.rms_norm(x, call.weight, call.type, call.width, call.eps, row_of(call.out, call.type, width, row));
}

float sum_of(const Kernels& kernels, const std::uint16_t* x, int count) {
  static constexpr int kPiece = 256;
  static const auto kOnes = [] {
    std::vector<std::uint16_t> ones(kPiece, 0x3f80);  // 1 in bf16
    return ones;
  }();
  float sum = 0, part;
  for (int i = 0; i < count; i += kPiece, sum += part)
    kernels.router_scores(x + i, kOnes.data(), FloatType::bf16, 1, std::min(kPiece, count - i), &part);
  return sum;
}

void prepare_heads(const Kernels& kernels, const HeadsCall& call, const Heads& part, int token) {
  const std::size_t at = std::size_t(token) * (call.rope_dim / 2);
  const Turn turn{call.cos + at, call.sin + at, call.rope_dim, call.interleaved};
  const int all = part.heads * part.width;
  std::uint16_t* x = part.x + std::size_t(token) * all;
  if (part.norm && part.whole) kernels.rms_norm(x, part.norm, FloatType::bf16, all, call.eps, x);
  for (int h = 0; h < part.heads; ++h) {
    std::uint16_t* head = x + std::size_t(h) * part.width;
    if (part.norm && !part.whole)
      kernels.rms_norm(head, part.norm, FloatType::bf16, part.width, call.eps, head);
    kernels.step->rotate(head, turn);
  }
  if (part.sums) part.sums[token] = sum_of(kernels, x, all);
}

// Norms of some tokens; their logits, a few rows of the gate at a time; their experts.
void route_tokens(const Kernels& kernels, RouterConfig config, const RouterCall& call, const ManyTokens& more,
                  int first, int count) {
  const std::size_t width = call.hidden, experts = config.experts, top_k = config.top_k;
  const NormCall norm{call.residual, more.added, call.norm, call.type,       width, call.tokens,
                      call.hidden,   call.eps,   more.sum,  call.normalized};
  for (int t = first; t < first + count; ++t) norm_row(kernels, norm, t);
  for (int row = 0; row < config.experts; row += kRouterRows)
    for (int t = first; t < first + count; ++t)
      kernels.router_scores(row_of(call.normalized, call.type, width, t), row_of(call.gate, call.type, width, row),
                            call.type, std::min(kRouterRows, config.experts - row), call.hidden,
                            call.scores + t * experts + row);
  for (int t = first; t < first + count; ++t) {
    std::int64_t* ids = call.ids + t * top_k;
    float* weights = call.weights + t * top_k;
    std::fill(ids, ids + top_k, -1);
    std::fill(weights, weights + top_k, 0.0f);
    if (more.counts) config.top_k = int(more.counts[t]);
    choose_experts(kernels, config, call.type, call.bias,
                   {call.scores + t * experts, call.selection_scores + t * experts, ids, weights});
  }
}

void check_heads(const HeadsCall& call, const Heads& part) {
  require(part.heads >= 1 && part.width >= 1 && call.rope_dim <= part.width,
          "the rotated part of a head is no longer than the head");
  require(!call.tokens || part.x, "queries or keys are missing");
}

}  // namespace

RowRunner::RowRunner(std::shared_ptr<Pool> pool, Isa isa) : pool_(std::move(pool)), kernels_(kernels_for(isa)) {
  require(kernels_, "this CPU does not support the instruction set asked for");
}

template <class Rows>
void RowRunner::run(int rows, const Rows& compute) {
  if (rows == 0) return;
  pool_->wait(pool_->submit(std::make_shared<RowsJob<Rows>>(rows, pool_->worker_slots(), compute)), true);
}

void RowRunner::norm(const NormCall& call) {
  require(call.rows >= 0 && call.width >= 1, "a norm needs rows and a width");
  require(!call.rows || (call.x && call.weight && call.out), "a norm's inputs or results are missing");
  require(call.rows < 2 || call.stride >= std::size_t(call.width), "rows of inputs overlap");
  require(!call.added || (call.sum && call.type == FloatType::bf16), "bf16 is added, and the sum is kept");
  run(call.rows, [kernels = kernels_, call](int first, int count) {
    for (int row = first; row < first + count; ++row) norm_row(*kernels, call, row);
  });
}

void RowRunner::heads(const HeadsCall& call) {
  require(call.tokens >= 0 && call.rope_dim >= 0 && call.rope_dim % 2 == 0, "there are no such heads");
  require(!call.tokens || !call.rope_dim || (call.cos && call.sin), "angles are missing");
  check_heads(call, call.queries);
  check_heads(call, call.keys);
  run(call.tokens, [kernels = kernels_, call](int first, int count) {
    for (int token = first; token < first + count; ++token) {
      prepare_heads(*kernels, call, call.queries, token);
      prepare_heads(*kernels, call, call.keys, token);
    }
  });
}

void RowRunner::route(const RouterConfig& config, const RouterCall& call, const ManyTokens& more) {
  check_router(config);
  check_route(call);
  require(!more.added || (more.sum && call.type == FloatType::bf16), "bf16 is added, and the sum is kept");
  for (int t = 0; more.counts && t < call.tokens; ++t)
    require(more.counts[t] >= 1 && more.counts[t] <= config.top_k, "a token uses 1 to top-k experts");
  run(call.tokens, [kernels = kernels_, config, call, more](int first, int count) {
    route_tokens(*kernels, config, call, more, first, count);
  });
}

}  // namespace moesaic
