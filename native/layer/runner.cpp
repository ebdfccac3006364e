#include "layer/runner.h"

#include <utility>

#include "products/cpu_features.h"
#include "products/roofline.h"

namespace moesaic {

ExpertLayout checked_layout(Dtype dtype, int hidden, int intermediate) {
  constexpr int kMaxSize = 1 << 20;
  if (hidden < 1 || intermediate < 1 || hidden > kMaxSize || intermediate > kMaxSize)
    throw InvalidCall("an expert of " + std::to_string(hidden) + " x " + std::to_string(intermediate) +
                      " cannot be computed: sizes lie between 1 and " + std::to_string(kMaxSize));
  return ExpertLayout(dtype, hidden, intermediate);
}

namespace {

const Kernels* supported(Isa isa) {
  const Kernels* kernels = kernels_for(isa);
  if (!kernels) throw InvalidCall("this CPU does not support the instruction set asked for");
  return kernels;
}

}  // namespace

const Kernels* kernels_for(Isa isa) {
#if !defined(__x86_64__)
  return isa == Isa::best || isa == Isa::portable ? vector_kernels() : nullptr;
#else
  const CpuFeatures& cpu = cpu_features();
  switch (isa) {
    case Isa::amx: return cpu.amx ? amx_kernels() : nullptr;
    case Isa::avx512: return cpu.avx512 ? avx512_kernels() : nullptr;
    case Isa::avx512_vnni: return cpu.avx512_base && cpu.avx512_vnni ? avx512_vnni_kernels() : nullptr;
    case Isa::avx512_base: return cpu.avx512_base ? avx512_base_kernels() : nullptr;
    case Isa::avx2_vnni: return cpu.avx_vnni ? avx2_vnni_kernels() : nullptr;
    case Isa::avx2: return cpu.avx2 ? vector_kernels() : nullptr;
    case Isa::portable: return nullptr;
    case Isa::best: break;
  }
  return supported_isas().empty() ? nullptr : kernels_for(supported_isas().front().isa);
#endif
}

const std::vector<NamedIsa>& supported_isas() {
  static const std::vector<NamedIsa> found = [] {
    std::vector<NamedIsa> isas;
    for (const NamedIsa& each : kIsas)
      if (kernels_for(each.isa)) isas.push_back(each);
    for (std::size_t i = 1; i < isas.size(); ++i)
      if (isas[i].isa == Isa::avx512_vnni && isas[i - 1].isa == Isa::avx512 && !bf16_dots_are_faster())
        std::swap(isas[i - 1], isas[i]);
    return isas;
  }();
  return found;
}

Runner::Runner(std::shared_ptr<Pool> pool, Dtype dtype, int hidden, int intermediate, Activation activation,
               Isa isa, int tiles_from)
    : pool_(std::move(pool)),
      config_{checked_layout(dtype, hidden, intermediate), activation, supported(isa), tiles_from},
      jobs_(config_, pool_->worker_slots()) {}

void Runner::pack(const MatrixView (&matrices)[3], std::uint8_t* block) {
  if (reinterpret_cast<std::uintptr_t>(block) % kAlignment)
    throw InvalidCall("a block begins at a multiple of " + std::to_string(kAlignment) + " bytes");
  std::atomic<int> non_finite{0};
  const std::uint64_t ticket = pool_->submit(pack_job(config_.layout, matrices, block, &non_finite));
  pool_->wait(ticket, true);
  static const char* const kNames[3] = {"gate", "up", "down"};
  if (const int which = non_finite.load())
    throw std::domain_error(std::string("the ") + kNames[which - 1] + " matrix has infinities or nan");
}

void Runner::submit(const LayerCall& call) {
  if (const std::string wrong = validate(config_, call); !wrong.empty()) throw InvalidCall(wrong);
  const std::lock_guard<std::mutex> lock(submit_mutex_);
  LayerCall own = call;
  own.divides = ahead_ && call.tokens == 1;
  stop_reading_ahead();
  wait(true);  // the workspace is in use until then
  if (call.tokens == 0) return;
  ticket_ = pool_->submit(jobs_.make(own, workspace_));
}

void Runner::read_ahead(const std::uint8_t* const* blocks, int count) {
  const std::lock_guard<std::mutex> lock(submit_mutex_);
  stop_reading_ahead();
  if (count == 0 || pool_->workers() == 0) return;
  ahead_ = std::make_shared<ExpertReadAhead>(config_.layout, blocks, count, pool_->worker_slots());
  pool_->submit(ahead_);
}

void Runner::stop_reading_ahead() {
  if (ahead_) ahead_->cancel();
  ahead_.reset();
}

bool Runner::done() const {
  const std::uint64_t ticket = ticket_.load();
  return ticket == 0 || pool_->done(ticket);
}

void Runner::wait(bool help) {
  if (const std::uint64_t ticket = ticket_.load()) pool_->wait(ticket, help);
}

}  // namespace moesaic
