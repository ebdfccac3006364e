// The machine's limits (roofline): streaming bandwidth and the peak of every arithmetic unit, measured with the same workers that
// compute experts.
#pragma once

#include <memory>
#include <vector>

#include "pool/pool.h"

namespace moesaic {

// Reads every byte once, each worker a contiguous range; `multi_stream`: in four read streams instead of
// one. Which of the two is faster depends on the number of workers.
std::shared_ptr<Job> stream_job(const std::uint8_t* memory, std::size_t bytes, bool multi_stream,
                                int worker_slots);

// A unit of this processor: its precision and instructions ("bf16-amx"), and a loop on its registers alone.
struct Peak {
  const char* name;
  double item_ops;  // operations of one call of `run`; a multiplication and an addition are two
  void (*run)();
};
const std::vector<Peak>& peaks();  // of this processor

// Whether this processor multiplies bf16 at least as fast by dot products as widened to fp32: some have half
// the rate of fp32, others twice. Measured once, in less than a millisecond.
bool bf16_dots_are_faster();

std::shared_ptr<Job> peak_job(const Peak& peak, int items);
constexpr double kPeakItemFlops = 4.0 * 16 * 16 * 32 * 2 * 1024;

void run_peak_tiles();       // kPeakItemFlops operations in bf16
void run_peak_int8_tiles();  // twice as many in int8

}  // namespace moesaic
