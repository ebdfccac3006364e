// What this machine can do at best, measured with the same workers that compute experts.
#pragma once

#include <memory>

#include "pool/pool.h"

namespace moesaic {

// Reads every byte once, everybody a long stretch of his own; `spread`: in four places of it at once.
// Which is faster depends on how many there are.
std::shared_ptr<Work> stream_work(const std::uint8_t* memory, std::size_t bytes, bool spread, int places);

// Tile products on registers alone, `items` times `kPeakFlops` operations; null without AMX.
std::shared_ptr<Work> peak_work(int items);
constexpr double kPeakFlops = 4.0 * 16 * 16 * 32 * 2 * 1024;

void multiply_tiles();                                           // kPeakFlops operations

}  // namespace moesaic
