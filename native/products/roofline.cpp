#include "products/roofline.h"

#include <algorithm>

#include "products/cpu_features.h"
#include "pool/work_stealing.h"

namespace moesaic {

void read_through_avx2(const std::uint8_t* from, std::size_t bytes, bool spread);
void read_through_avx512(const std::uint8_t* from, std::size_t bytes, bool spread);

namespace {

constexpr std::size_t kPiece = 256 * 1024;

class StreamWork : public Work {
 public:
  StreamWork(const std::uint8_t* memory, std::size_t bytes, bool spread, int places)
      : memory_(memory),
        bytes_(bytes),
        spread_(spread),
        places_(places),
        ranges_(int((bytes + kPiece - 1) / kPiece), places) {}
  int phases() const override { return 1; }
  int items(int) override { return places_; }
  void run(int, int, int worker) override {
    for (int item; (item = ranges_.take(worker)) >= 0;) {
      const std::size_t from = item * kPiece, size = std::min(kPiece, bytes_ - from);
      (cpu().avx512 ? read_through_avx512 : read_through_avx2)(memory_ + from, size, spread_);
    }
  }

 private:
  const std::uint8_t* memory_;
  const std::size_t bytes_;
  const bool spread_;
  const int places_;
  Ranges ranges_;  // long stretches, which memory gives faster than pieces from here and there
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

std::shared_ptr<Work> stream_work(const std::uint8_t* memory, std::size_t bytes, bool spread, int places) {
  return std::make_shared<StreamWork>(memory, bytes, spread, places);
}

std::shared_ptr<Work> peak_work(int items) {
  return cpu().amx ? std::make_shared<PeakWork>(items) : nullptr;
}

}  // namespace moesaic
