// A layer with few tokens: as fast as its weights come from memory. Everybody reads long stretches, knows
// what comes next and waits for nobody: whoever is the last at something does what had to wait for it.
#include <algorithm>
#include <atomic>

#include "layer/layer_job.h"
#include "pool/work_stealing.h"

namespace moesaic {
namespace {

constexpr std::size_t kItemBytes = 48 * 1024;  // of weights: what taking an item is worth
constexpr int kItemsEach = 6;                  // at least, where there are enough strips

class FewTokens : public LayerBase {
 public:
  FewTokens(const LayerKind& kind, const LayerCall& call, Rows rows, Workspace& workspace, int places)
      : LayerBase(kind, call, std::move(rows), places),
        up_(kind.layout.up.strips, 2 * kind.layout.up.strip_bytes, 1, *this),
        down_(kind.layout.down.strips, kind.layout.down.strip_bytes, 2, *this),
        to_activate_(rows_.chunks.size()),
        to_add_(down_.pieces) {
    for (Chunk& chunk : rows_.chunks) chunk.wave_first = chunk.first;
    for (auto& left : to_activate_) left.store(up_.pieces, std::memory_order_relaxed);
    for (auto& left : to_add_) left.store(int(rows_.chunks.size()), std::memory_order_relaxed);
    const std::size_t bytes = parts_bytes(kind.layout, rows_.count());
    parts_ = reinterpret_cast<float*>(lay_out(workspace, rows_.count(), bytes));
  }

  int phases() const override { return 2; }
  int items(int) override { return places_; }  // invitations: whoever comes does as much as he can

  void run(int phase, int, int worker) override {
    Matrix& matrix = phase == 0 ? up_ : down_;
    for (int item; (item = matrix.ranges.take(worker)) >= 0;) {
      const Piece piece = matrix.piece(item);
      phase == 0 ? gate_and_up_of(piece, worker) : down_of(piece, worker);
    }
  }

 private:
  struct Piece {
    int chunk, strip, strips, number;  // among the pieces of a chunk
  };

  // How a matrix of every chunk is cut into pieces: one chunk after the other.
  struct Matrix {
    const int strips, at_once, pieces;
    Ranges ranges;

    Matrix(int strips, std::size_t bytes, int least, const FewTokens& of)
        : strips(strips),
          at_once(choose(strips, bytes, least, of)),
          pieces(divide_up(strips, at_once)),
          ranges(pieces * int(of.rows_.chunks.size()), of.places_) {}

    static int choose(int strips, std::size_t bytes, int least, const FewTokens& of) {
      const int all = strips * int(of.rows_.chunks.size());
      const int most = std::min(kMostStrips, all / (kItemsEach * of.places_));
      return std::max(std::min(int(kItemBytes / bytes), most) / least * least, least);
    }
    Piece piece(int item) const {
      const int number = item % pieces, strip = number * at_once;
      return {item / pieces, strip, std::min(at_once, strips - strip), number};
    }
  };

  void gate_and_up_of(const Piece& piece, int worker) {
    const Chunk& chunk = rows_.chunks[piece.chunk];
    const Next next = next_up(worker, gate_and_up_at(chunk, piece.strip));
    gate_and_up(piece.chunk, piece.strip, piece.strips, worker, next);
    if (kind_.bf16_inside(chunk.tokens)) return;
    if (to_activate_[piece.chunk].fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    for (int tile = 0; tile * kTileTokens < chunk.tokens; ++tile) fill_inner(chunk, tile);
  }

  void down_of(const Piece& piece, int worker) {
    const Chunk& chunk = rows_.chunks[piece.chunk];
    const Next next = next_down(worker, down_at(chunk, piece.strip));
    down_product(chunk, piece.strip, piece.strips, part(chunk, piece.strip), worker, next);
    if (to_add_[piece.number].fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    // Always in the same order, so that the same call gives the same bits.
    begin_sums(piece.strip, piece.strips);
    for (const Chunk& each : rows_.chunks) add(each, piece.strip, piece.strips, part(each, piece.strip));
    end_sums(piece.strip, piece.strips);
  }

  // What this worker reads next, or something that is near already.
  Next next_up(int worker, const Next& otherwise) const {
    const int item = up_.ranges.next(worker);
    if (item < 0) return next_down(worker, otherwise);
    const Piece piece = up_.piece(item);
    return gate_and_up_at(rows_.chunks[piece.chunk], piece.strip);
  }

  Next next_down(int worker, const Next& otherwise) const {
    const int item = down_.ranges.next(worker);
    if (item < 0) return otherwise;
    const Piece piece = down_.piece(item);
    return down_at(rows_.chunks[piece.chunk], piece.strip);
  }

  // What a chunk adds to the result: [strip][token][16].
  float* part(const Chunk& chunk, int strip) {
    return parts_ + (std::size_t(chunk.first) * down_.strips + std::size_t(strip) * chunk.tokens) * 16;
  }

  Matrix up_, down_;
  std::vector<std::atomic<int>> to_activate_;  // pieces of each chunk
  std::vector<std::atomic<int>> to_add_;       // chunks of each piece of down
  float* parts_ = nullptr;
};

}  // namespace

std::shared_ptr<Work> few_tokens(const LayerKind& kind, const LayerCall& call, Rows rows,
                                 Workspace& workspace, int places) {
  return std::make_shared<FewTokens>(kind, call, std::move(rows), workspace, places);
}

}  // namespace moesaic
