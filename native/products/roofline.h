// The machine's limits (roofline): streaming bandwidth and matrix peak, measured with the same workers that
// compute experts.
#pragma once

#include <memory>

#include "pool/pool.h"

namespace moesaic {

// Reads every byte once, each worker a contiguous range; `multi_stream`: in four read streams instead of
// one. Which of the two is faster depends on the number of workers.
std::shared_ptr<Job> stream_job(const std::uint8_t* memory, std::size_t bytes, bool multi_stream,
                                int worker_slots);

// Tile products on registers alone, `items` times `kPeakItemFlops` operations; null without AMX.
std::shared_ptr<Job> peak_job(int items);
constexpr double kPeakItemFlops = 4.0 * 16 * 16 * 32 * 2 * 1024;

void run_peak_tiles();  // kPeakItemFlops operations

}  // namespace moesaic
