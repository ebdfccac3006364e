// Positions at which a strip is read concurrently: several keep more memory requests in flight than one.
// Internal linkage, as in elementwise.h.
#pragma once

#include "products/lanes.h"

namespace moesaic {
namespace {

constexpr int kAheadBytes = 4096;  // distance of prefetching

// Consecutive tiles of a strip, and what is read after them, which is prefetched near the end: any address.
template <Dtype dtype>
struct ReadStream {
  static constexpr Format kFormat = format_of(dtype);
  static constexpr std::size_t kBytes = kFormat.tile_bytes;
  static constexpr int kGroup = kFormat.group ? kFormat.group / kFormat.tile_inputs : 1;  // tiles of a scale

  const std::uint8_t *tiles_at = nullptr, *scales_at = nullptr;
  std::uintptr_t next_tiles = 0, next_scales = 0;
  int first = 0, tiles = 0;  // of the strip

  ReadStream() = default;
  // `next` are the tiles from `next_first` on of the strip at `next_strip`.
  ReadStream(const std::uint8_t* strip, const MatrixLayout& matrix, int first_, int tiles_,
             const std::uint8_t* next_strip, int next_first)
      : tiles_at(strip + matrix.scales_bytes + first_ * kBytes),
        scales_at(strip + first_ / kGroup * 32),
        next_tiles(std::uintptr_t(next_strip) + matrix.scales_bytes + next_first * kBytes),
        next_scales(std::uintptr_t(next_strip) + next_first / kGroup * 32),
        first(first_),
        tiles(tiles_) {}

  const std::uint8_t* tile(int k) const { return tiles_at + k * kBytes; }
  // What to prefetch while tile k is read: the line as far ahead as each of its own.
  std::uintptr_t ahead(int k) const {
    const int at = k + int(kAheadBytes / kBytes);
    return at < tiles ? std::uintptr_t(tiles_at) + at * kBytes : next_tiles + (at - tiles) * kBytes;
  }
  const std::uint8_t* scales(int k) const { return scales_at + k / kGroup * 32; }
  void prefetch_scales(int k) const {
    const int at = k + int(kAheadBytes / kBytes);
    prefetch_line(at < tiles ? std::uintptr_t(scales_at) + at / kGroup * 32
                             : next_scales + (at - tiles) / kGroup * 32);
  }
};

}  // namespace
}  // namespace moesaic
