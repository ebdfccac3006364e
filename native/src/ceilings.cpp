#include "ceilings.h"

#include <algorithm>

#include "cpu.h"

namespace moesaic {

void read_through_avx2(const std::uint8_t* from, std::size_t bytes);
void read_through_avx512(const std::uint8_t* from, std::size_t bytes);

namespace {

constexpr std::size_t kPiece = 256 * 1024;

class StreamWork : public Work {
 public:
  StreamWork(const std::uint8_t* memory, std::size_t bytes) : memory_(memory), bytes_(bytes) {}
  int phases() const override { return 1; }
  int items(int) override { return int((bytes_ + kPiece - 1) / kPiece); }
  void run(int, int item, int) override {
    const std::size_t from = item * kPiece, size = std::min(kPiece, bytes_ - from);
    (cpu().avx512 ? read_through_avx512 : read_through_avx2)(memory_ + from, size);
  }

 private:
  const std::uint8_t* memory_;
  std::size_t bytes_;
};

class PeakWork : public Work {
 public:
  explicit PeakWork(int items) : items_(items) {}
  int phases() const override { return 1; }
  int items(int) override { return items_; }
  void run(int, int, int) override { multiply_tiles(); }

 private:
  int items_;
};

}  // namespace

std::shared_ptr<Work> stream_work(const std::uint8_t* memory, std::size_t bytes) {
  return std::make_shared<StreamWork>(memory, bytes);
}

std::shared_ptr<Work> peak_work(int items) {
  return cpu().amx ? std::make_shared<PeakWork>(items) : nullptr;
}

}  // namespace moesaic
