// Products in vectors, of the width and with the dot products that the source file's instruction set has.
// Two registers of outputs (two strips with AVX-512, one with AVX2) are multiplied with several tokens at
// once; a token's inputs are broadcast, so nothing is summed across lanes.
//
// A token's bits do not depend on how many tokens share a call, unless its codes do (int4, see `Kernels::tiles`): the
// order of summation is that of the read streams, whose number is fixed, whether they are read side by side (few tokens: more requests in flight)
// or one after the other (many: registers hold their sums). Internal linkage, as in elementwise.h.
#pragma once

#include <algorithm>

#include "products/kernels.h"
#include "products/operands.h"
#include "products/read_streams.h"

namespace moesaic {
namespace {

constexpr int kSideBySide = kVectorBytes == 64 ? 2 : 1;  // strips
constexpr int kStreams = 4;                              // of bf16 and int8
template <int T>
constexpr int kConcurrent = kVectorBytes == 64 ? (T <= 2 ? 4 : 8 / T) : (T <= 4 ? 4 / T : 1);
template <Dtype dtype>  // whose sums registers hold
constexpr int kMostTokens = kVectorBytes == 64                                                            ? 8
                            : dtype == Dtype::bf16 || (kByteDots && dtype == Dtype::int8) ? 6
                                                                                          : 4;

template <Dtype dtype, int S, int N>
using ReadStreams = ReadStream<dtype>[S][N];

// Multiplies tile k of `Count` streams, from number `from` on, of S strips with T tokens, and adds to the
// sums of as many streams, from `Slot` on.
template <class Parts, int Slot, int Count, Dtype dtype, int S, int T, int U>
[[gnu::always_inline]] inline void add_tiles(const ReadStreams<dtype, S, kStreams>& streams, int from, int k,
                                             const Tokens& x,
                                             typename Parts::Sums (&sums)[S * kColumns][T][U]) {
  TileInputs<Parts, T> inputs[Count];
  const std::uint8_t* lines[S][Count];
  std::uintptr_t ahead[S][Count];
#pragma GCC unroll 4
  for (int u = 0; u < Count; ++u) {
    inputs[u].set(x.rows + (streams[0][from + u].first + k) * x.tile_bytes);
#pragma GCC unroll 2
    for (int s = 0; s < S; ++s) {
      lines[s][u] = streams[s][from + u].tile(k);
      ahead[s][u] = streams[s][from + u].ahead(k);
    }
  }
#pragma GCC unroll 2
  for (int p = 0; p < 16; ++p)
#pragma GCC unroll 4
    for (int u = 0; u < Count; ++u) {
      Words line[S * kColumns];
#pragma GCC unroll 4
      for (int c = 0; c < S * kColumns; ++c) {
        if (c % kColumns == 0) prefetch_line(ahead[c / kColumns][u] + p * kRowBytes);
        line[c] = load(lines[c / kColumns][u] + p * kRowBytes + c % kColumns * kVectorBytes);
      }
#pragma GCC unroll 2
      for (int part = 0; part < Parts::kParts; ++part) {
        Words w[S * kColumns];
#pragma GCC unroll 4
        for (int c = 0; c < S * kColumns; ++c) w[c] = Parts::weights(part, line[c]);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
          const Words word = inputs[u].word(t, part, p);
#pragma GCC unroll 4
          for (int c = 0; c < S * kColumns; ++c)
            sums[c][t][Slot + u] = Parts::add(sums[c][t][Slot + u], w[c], word);
        }
      }
    }
}

template <int S, int T>
inline void store_sums(const Floats (&sums)[S * kColumns][T], float* c, std::size_t c_stride) {
  for (int i = 0; i < S * kColumns; ++i)
    for (int t = 0; t < T; ++t)
      store(sums[i][t], c + i / kColumns * c_stride + t * kStripOutputs + i % kColumns * kLanes);
}

template <int S, int T>
void bf16_rows(const std::uint8_t* const* strips, const MatrixLayout& matrix, const Tokens& x, float* c,
               std::size_t c_stride) {
  constexpr int U = kConcurrent<T>, kLast = kStreams - 1;
  const int units = matrix.tiles / kStreams;
  ReadStreams<Dtype::bf16, S, kStreams> streams;
  for (int s = 0; s < S; ++s)
    for (int u = 0; u < kStreams; ++u)
      streams[s][u] = {strips[s],
                       matrix,
                       u * units,
                       u < kLast ? units : matrix.tiles - kLast * units,
                       strips[u + U < kStreams ? s : s + S],
                       (u + U) % kStreams * units};
  Floats total[S * kColumns][T] = {};
  for (int first = 0; first < kStreams; first += U) {
    Floats sums[S * kColumns][T][U] = {};
    for (int k = 0; k < units; ++k) add_tiles<Bf16Parts, 0, U, Dtype::bf16, S>(streams, first, k, x, sums);
    if (first + U == kStreams)
      for (int k = units; k < streams[0][kLast].tiles; ++k)
        add_tiles<Bf16Parts, U - 1, 1, Dtype::bf16, S>(streams, kLast, k, x, sums);
    for (int i = 0; i < S * kColumns; ++i)
      for (int t = 0; t < T; ++t)
        for (int u = 0; u < U; ++u) total[i][t] += sums[i][t][u];
  }
  store_sums<S>(total, c, c_stride);
}

// One group of inputs, whose first tile is k, in each of U streams. Sums within a group are exact.
template <int U, int S, int T>
[[gnu::always_inline]] inline void int8_groups(const ReadStreams<Dtype::int8, S, kStreams>& streams, int from,
                                               int k, int tiles, int groups, const Tokens& x,
                                               Floats (&sums)[S * kColumns][T]) {
  constexpr int kGroup = ReadStream<Dtype::int8>::kGroup;
  Ints codes[S * kColumns][T][U];
#pragma GCC unroll 4
  for (int u = 0; u < U; ++u)
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const int group = (streams[0][from + u].first + k) / kGroup;
      const Ints start = Ints{} + Int8Parts::start(x.code_sums[t * groups + group]);
      for (int c = 0; c < S * kColumns; ++c) codes[c][t][u] = start;
    }
  for (int i = 0; i < tiles; ++i)
    add_tiles<Int8Parts, 0, U, Dtype::int8, S>(streams, from, k + i, x, codes);
#pragma GCC unroll 4
  for (int u = 0; u < U; ++u)
#pragma GCC unroll 4
    for (int c = 0; c < S * kColumns; ++c) {
      const ReadStream<Dtype::int8>& stream = streams[c / kColumns][from + u];
      if (c % kColumns == 0) stream.prefetch_scales(k);
      const Floats scale = widened_bf16(stream.scales(k) + c % kColumns * kLanes * 2);
      const int group = (stream.first + k) / kGroup;
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t)
        sums[c][t] = multiply_add(__builtin_convertvector(codes[c][t][u], Floats),
                                  scale * x.scales[t * groups + group], sums[c][t]);
    }
}

template <int S, int T>
void int8_rows(const std::uint8_t* const* strips, const MatrixLayout& matrix, const Tokens& x, float* c,
               std::size_t c_stride) {
  constexpr int U = kConcurrent<T>, kLast = kStreams - 1, kGroup = ReadStream<Dtype::int8>::kGroup;
  const int units = matrix.tiles / kGroup / kStreams * kGroup;  // tiles of a stream, in whole groups
  ReadStreams<Dtype::int8, S, kStreams> streams;
  for (int s = 0; s < S; ++s)
    for (int u = 0; u < kStreams; ++u)
      streams[s][u] = {strips[s],     matrix,   u * units, u < kLast ? units : matrix.tiles - kLast * units,
                       strips[s + S], u * units};
  Floats sums[S * kColumns][T] = {};
  for (int k = 0; k < units; k += kGroup)
    for (int first = 0; first < kStreams; first += U)
      int8_groups<U, S>(streams, first, k, kGroup, matrix.groups, x, sums);
  for (int k = units; k < streams[0][kLast].tiles; k += kGroup)
    int8_groups<1, S>(streams, kLast, k, std::min(kGroup, streams[0][kLast].tiles - k), matrix.groups, x,
                      sums);
  store_sums<S>(sums, c, c_stride);
}

// Tile k of a stream, one register of its outputs. Weights stay unsigned codes (0 to 15, meaning -8 to 7); a
// token's codes are `Bytes`, or 16 bits, which are multiplied as two bytes. Sums within the tile are exact.
template <bool Bytes, int T>
[[gnu::always_inline]] inline void int4_tile(const ReadStream<Dtype::int4>& stream, int k, int column,
                                             int groups, const Tokens& x, Floats (&sums)[T]) {
  const int tile = stream.first + k;
  const std::uint8_t* lines = stream.tile(k) + column * kVectorBytes;
  // Columns would share broadcasts, which do not fit into registers.
  const std::uint8_t* rows = unrelated(x.rows + tile * x.tile_bytes);
  const std::uintptr_t ahead = stream.ahead(k);
  Int4Parts::Sums high[T] = {}, low[T] = {};
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    if (column == 0) prefetch_line(ahead + r * kRowBytes);
    const Words eight = load(lines + r * kRowBytes);
    const Words first = eight & 0x0f0f0f0fu, second = eight >> 4 & 0x0f0f0f0fu;
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const std::uint8_t* codes = rows + t * kRowBytes + r * 8;
      high[t] = Int4Parts::add(high[t], first, broadcast(codes));
      if constexpr (!Bytes) low[t] = Int4Parts::add(low[t], first, broadcast(codes + 32));
      high[t] = Int4Parts::add(high[t], second, broadcast(codes + 4));
      if constexpr (!Bytes) low[t] = Int4Parts::add(low[t], second, broadcast(codes + 36));
    }
  }
  const Floats scale = widened_bf16(stream.scales(k) + column * kLanes * 2);
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    Words all = (Words)Int4Parts::total(high[t]);
    if constexpr (!Bytes) all = (all << 8) + (Words)Int4Parts::total(low[t]);
    const Ints codes = (Ints)all - 8 * x.code_sums[t * groups + tile];
    sums[t] = multiply_add(__builtin_convertvector(codes, Floats), scale * x.scales[t * groups + tile],
                           sums[t]);
  }
}

template <bool Bytes, int S, int T>
void int4_rows(const std::uint8_t* const* strips, const MatrixLayout& matrix, const Tokens& x, float* c,
               std::size_t c_stride) {
  constexpr int kTwo = 2;  // streams: more cost more instructions than they gain
  const int units = matrix.tiles / kTwo;
  ReadStreams<Dtype::int4, S, kTwo> streams;
  for (int s = 0; s < S; ++s)
    for (int u = 0; u < kTwo; ++u)
      streams[s][u] = {strips[s],     matrix,   u * units, u ? matrix.tiles - units : units,
                       strips[s + S], u * units};
  Floats sums[S * kColumns][T] = {};
  const auto tiles = [&](int u, int k) {
#pragma GCC unroll 4
    for (int i = 0; i < S * kColumns; ++i) {
      const ReadStream<Dtype::int4>& stream = streams[i / kColumns][u];
      if (i % kColumns == 0) stream.prefetch_scales(k);
      int4_tile<Bytes>(stream, k, i % kColumns, matrix.groups, x, sums[i]);
    }
  };
  for (int k = 0; k < units; ++k)
    for (int u = 0; u < kTwo; ++u) tiles(u, k);
  if (matrix.tiles % kTwo) tiles(1, units);
  store_sums<S>(sums, c, c_stride);
}

// `Bytes`: int4 weights are multiplied with byte codes.
template <Dtype dtype, bool Bytes, int S, int T>
void rows(const std::uint8_t* const* strips, const MatrixLayout& matrix, const Panel& panel, int token,
          float* c) {
  const int tile = token / kTileTokens;
  const std::size_t c_stride = std::size_t(panel.tokens) * kStripOutputs;
  const Tokens x{panel.tile(tile) + token % kTileTokens * kRowBytes,
                 std::size_t(panel.tile_tokens(tile)) * kRowBytes, panel.scales + token * panel.groups,
                 panel.code_sums + token * panel.groups};
  if constexpr (dtype == Dtype::int8)
    int8_rows<S, T>(strips, matrix, x, c, c_stride);
  else if constexpr (dtype == Dtype::int4)
    int4_rows<Bytes, S, T>(strips, matrix, x, c, c_stride);
  else
    bf16_rows<S, T>(strips, matrix, x, c, c_stride);
}

template <Dtype dtype, bool Bytes, int S>
void strips_product(const std::uint8_t* const* strips, const MatrixLayout& matrix, const Panel& panel,
                    float* c) {
  constexpr int kMost = kMostTokens<dtype>;
  for (int token = 0, taken; token < panel.tokens; token += taken, c += taken * kStripOutputs) {
    const int left = panel.tile_tokens(token / kTileTokens) - token % kTileTokens;
    taken = left >= kMost ? kMost : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    switch (taken) {
      case 1: rows<dtype, Bytes, S, 1>(strips, matrix, panel, token, c); break;
      case 2: rows<dtype, Bytes, S, 2>(strips, matrix, panel, token, c); break;
      case 4: rows<dtype, Bytes, S, 4>(strips, matrix, panel, token, c); break;
      default: rows<dtype, Bytes, S, kMost>(strips, matrix, panel, token, c);
    }
  }
}

template <Dtype dtype, bool Bytes = false>
void product(const std::uint8_t* const* strips, int count, const MatrixLayout& matrix, const Panel& panel,
             float* c, std::uint8_t*) {
  for (int s = 0; s < count; s += kSideBySide) {
    float* to = c + std::size_t(s) * panel.tokens * kStripOutputs;
    if (count - s >= kSideBySide)
      strips_product<dtype, Bytes, kSideBySide>(strips + s, matrix, panel, to);
    else
      strips_product<dtype, Bytes, 1>(strips + s, matrix, panel, to);
  }
}

}  // namespace
}  // namespace moesaic
