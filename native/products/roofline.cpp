#include "products/roofline.h"

#include <algorithm>

#include "pool/work_stealing.h"
#include "products/cpu_features.h"

namespace moesaic {

void read_memory_vectors(const std::uint8_t* from, std::size_t bytes, bool multi_stream);
void read_memory_avx512(const std::uint8_t* from, std::size_t bytes, bool multi_stream);

namespace {

constexpr std::size_t kItemBytes = 256 * 1024;

class StreamJob : public Job {
 public:
  StreamJob(const std::uint8_t* memory, std::size_t bytes, bool multi_stream, int worker_slots)
      : memory_(memory),
        bytes_(bytes),
        multi_stream_(multi_stream),
        worker_slots_(worker_slots),
        ranges_(int((bytes + kItemBytes - 1) / kItemBytes), worker_slots) {}
  int phases() const override { return 1; }
  int items(int) override { return worker_slots_; }
  void run(int, int, int worker) override {
    for (int item; (item = ranges_.take(worker)) >= 0;) {
      const std::size_t from = item * kItemBytes, size = std::min(kItemBytes, bytes_ - from);
      read(memory_ + from, size);
    }
  }

 private:
  void read(const std::uint8_t* from, std::size_t size) {
#if defined(__x86_64__)
    if (cpu_features().avx512_base) return read_memory_avx512(from, size, multi_stream_);
#endif
    read_memory_vectors(from, size, multi_stream_);
  }

  const std::uint8_t* memory_;
  const std::size_t bytes_;
  const bool multi_stream_;
  const int worker_slots_;
  WorkStealingRanges ranges_;  // contiguous ranges: faster than scattered items
};

class PeakJob : public Job {
 public:
  PeakJob(const Peak& peak, int items) : peak_(peak), items_(items) {}
  int phases() const override { return 1; }
  int items(int) override { return items_; }
  void run(int, int, int) override { peak_.run(); }

 private:
  const Peak peak_;
  const int items_;
};

}  // namespace

std::shared_ptr<Job> stream_job(const std::uint8_t* memory, std::size_t bytes, bool multi_stream,
                                int worker_slots) {
  return std::make_shared<StreamJob>(memory, bytes, multi_stream, worker_slots);
}

std::shared_ptr<Job> peak_job(const Peak& peak, int items) { return std::make_shared<PeakJob>(peak, items); }

}  // namespace moesaic
