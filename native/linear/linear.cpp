#include "linear/linear.h"

#include <string>

#include "linear/linear_job.h"

namespace moesaic {
namespace {

void check_matrix(const PackedMatrix& matrix) {
  const MatrixLayout& layout = matrix.layout;
  constexpr int kMaxSize = 1 << 22;
  if (layout.outputs < 1 || layout.inputs < 1 || layout.outputs > kMaxSize || layout.inputs > kMaxSize)
    throw InvalidCall("a matrix of " + std::to_string(layout.outputs) + " x " +
                      std::to_string(layout.inputs) + " cannot be multiplied");
  if (!matrix.data || reinterpret_cast<std::uintptr_t>(matrix.data) % kAlignment)
    throw InvalidCall("a packed matrix begins at a multiple of " + std::to_string(kAlignment) + " bytes");
}

void check_call(const LinearCall& call, const std::vector<LinearProduct>& products) {
  if (products.empty()) throw InvalidCall("there is no matrix to multiply with");
  const PackedMatrix& first = products[0].matrix;
  for (const LinearProduct& product : products) {
    check_matrix(product.matrix);
    if (product.matrix.dtype != first.dtype || product.matrix.layout.inputs != first.layout.inputs)
      throw InvalidCall("matrices of one call have one precision and the same number of inputs");
    if (call.tokens && !product.out) throw InvalidCall("inputs or result are missing");
  }
  if (call.tokens < 0 || (call.tokens && !call.x)) throw InvalidCall("inputs or result are missing");
  if (call.tokens > 1 && call.stride < std::size_t(first.layout.inputs))
    throw InvalidCall("rows of inputs overlap");
}

}  // namespace

LinearRunner::LinearRunner(std::shared_ptr<Pool> pool, Isa isa, int tiles_from_bf16, int tiles_from_int8,
                           int tiles_from_int4, LinearBlocking blocking)
    : pool_(std::move(pool)),
      multiplier_{kernels_for(isa), {tiles_from_bf16, tiles_from_int8, tiles_from_int4}},
      blocking_(blocking) {
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

void LinearRunner::run(const LinearCall& call, const std::vector<LinearProduct>& products) {
  check_call(call, products);
  if (call.tokens == 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  pool_->wait(pool_->submit(std::make_shared<LinearJob>(multiplier_, blocking_, call, products, workspace_,
                                                        pool_->worker_slots())),
              true);
}

}  // namespace moesaic
