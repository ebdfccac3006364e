// New keys and values are copied into the cache first. An item of attention is a tile of some tokens and all
// query heads that read one key head: what is packed of a block serves some hundred rows. The items with the
// most work come first.
#pragma once

#include <algorithm>
#include <vector>

#include "layer/workspace.h"
#include "pool/job.h"
#include "products/kernels.h"
#include "rows/attention.h"

namespace moesaic {

class AttentionJob : public Job {
 public:
  AttentionJob(const Kernels& kernels, const AttentionShape& shape,
               const std::vector<AttendedSequence>& sequences, Workspace& workspace, int worker_slots);

  int phases() const override { return 2; }
  int items(int phase) override { return int(phase ? items_.size() : copies_.size()); }
  void run(int phase, int item, int worker) override {
    phase ? attend(items_[item], memory_of(worker)) : copy(copies_[item]);
  }
  void worker_done() override {
    if (kernels_.release_tiles) kernels_.release_tiles();
  }

 private:
  // Rows are in tiles of 16 tokens of one head, all heads of a tile of tokens one after the other; or, where there
  // are few tokens, in tiles of 16 heads of one token. The last ones have rows of zeros. Four of them are multiplied
  // at once.
  struct Item {
    const AttendedSequence* sequence;
    int head, heads;    // of the queries
    int token, tokens;  // new ones
    std::int64_t work;

    int tiles_by_token() const { return divide_up(tokens, kTileTokens) * heads; }
    int tiles_by_head() const { return tokens * divide_up(heads, kTileTokens); }
    bool by_head() const { return tiles_by_head() < tiles_by_token(); }
    int tiles() const { return by_head() ? tiles_by_head() : tiles_by_token(); }
  };
  // What a row is of.
  struct Row {
    int token, head;  // new token of the item; head of the queries
    bool there;       // else it is one of zeros
  };
  struct Copy {
    const AttendedSequence* sequence;
    int token, tokens;
  };
  // Positions in the sequence: those of a row's token, and the first that it sees.
  struct Sight {
    int first, position;
  };
  // A worker's memory while it computes an item.
  struct Memory {
    std::uint8_t *queries, *keys, *values;  // a panel; strips
    std::uint16_t* widened;                 // a block's codes as bf16
    BlockScales* scales;
    float *scores, *added, *mixed;          // [strip][row][16]: of four tiles, of four, of all
    std::uint8_t* shares;                   // a panel of four tiles
    std::uint64_t* visible;                 // of four tiles
    float *shrink, *largest, *sums;         // of four tiles, of all, of all
    std::uint8_t* scratch;
  };

  void cut(const AttendedSequence& sequence, int tokens);
  void copy(const Copy& part) const;
  void attend(const Item& item, const Memory& memory) const;
  int heads_at_once() const;
  Memory memory_of(int worker) const;
  std::size_t worker_bytes() const;
  std::size_t widened_bytes() const {
    return std::size_t(kKeyBlock) * std::max(shape_.width, shape_.value_width) * 2;
  }
  static Row row_of(const Item& item, int tile, int i);
  std::size_t cached_row(const AttendedSequence& sequence, int position) const;
  Sight sight_of(const Item& item, int token) const;
  void fill(const Item& item, const Memory& memory) const;
  void copy_rows(const CachedHeads& to, const Copy& part, const std::uint16_t* from, int width) const;
  BlockRows rows_of(const CachedHeads& cached, const Item& item, int block, int width, const Memory& memory,
                    float* scales) const;
  void attend_tiles(const Item& item, const Memory& memory, int block, int tile, std::uint64_t broken) const;
  void multiply(const MatrixLayout& matrix, const std::uint8_t* strips, int count, const Panel& panel, float* c,
                std::uint8_t* scratch) const;
  void write(const Item& item, const Memory& memory) const;

  const Kernels& kernels_;
  const AttentionShape shape_;
  const std::vector<AttendedSequence> sequences_;
  const MatrixLayout keys_, values_;  // of a block: outputs are positions, or columns of values
  std::vector<Copy> copies_;
  std::vector<Item> items_;
  int most_tiles_ = 0;
  bool codes_ = false;  // whether a sequence has them
  std::uint8_t* workers_ = nullptr;
};

}  // namespace moesaic
