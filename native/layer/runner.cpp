#include "layer/runner.h"

#include "products/cpu_features.h"

namespace moesaic {
namespace {

ExpertLayout checked(Dtype dtype, int hidden, int intermediate) {
  constexpr int kMost = 1 << 20;
  if (hidden < 1 || intermediate < 1 || hidden > kMost || intermediate > kMost)
    throw BadCall("an expert of " + std::to_string(hidden) + " x " + std::to_string(intermediate) +
                  " cannot be computed: sizes lie between 1 and " + std::to_string(kMost));
  return ExpertLayout(dtype, hidden, intermediate);
}

const Kernels* found(Isa isa) {
  const Kernels* kernels = kernels_for(isa);
  if (!kernels) throw BadCall("this CPU has not got the instructions asked for");
  return kernels;
}

}  // namespace

const Kernels* kernels_for(Isa isa) {
  const Cpu& has = cpu();
  if ((isa == Isa::best || isa == Isa::amx) && has.amx) return amx_kernels();
  if ((isa == Isa::best || isa == Isa::avx512) && has.avx512) return avx512_kernels();
  if ((isa == Isa::best || isa == Isa::avx2) && has.avx2) return avx2_kernels();
  return nullptr;
}

Runner::Runner(std::shared_ptr<Pool> pool, Dtype dtype, int hidden, int intermediate,
               Activation activation, Isa isa, int tiles_from)
    : pool_(std::move(pool)),
      kind_{checked(dtype, hidden, intermediate), activation, found(isa), tiles_from} {}

void Runner::pack(const Matrix (&matrices)[3], std::uint8_t* block) {
  if (reinterpret_cast<std::uintptr_t>(block) % kAlignment)
    throw BadCall("a block begins at a multiple of " + std::to_string(kAlignment) + " bytes");
  std::atomic<int> damaged{0};
  const std::uint64_t ticket = pool_->submit(pack_work(kind_.layout, matrices, block, &damaged));
  pool_->wait(ticket, true);
  static const char* const kNames[3] = {"gate", "up", "down"};
  if (const int which = damaged.load())
    throw std::domain_error(std::string("the ") + kNames[which - 1] +
                            " matrix has infinities or nan");
}

void Runner::submit(const LayerCall& call) {
  if (const std::string wrong = complaint(kind_, call); !wrong.empty()) throw BadCall(wrong);
  wait(true);  // the workspace is the last job's until then
  if (call.tokens == 0) return;
  ticket_ = pool_->submit(layer_work(kind_, call, workspace_, pool_->places()));
}

void Runner::wait(bool help) {
  if (ticket_) pool_->wait(ticket_, help);
  ticket_ = 0;
}

}  // namespace moesaic
