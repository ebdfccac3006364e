// Writes the table of a layer (kernels/gpu/table.py): which experts the GPU computes, and where their weights are.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "conductor/conductor.h"

namespace moesaic {

class TableWriter {
 public:
  // `pairs`: by expert, its pairs of a token and a rank; `count` pairs there are in all.
  TableWriter(const Mailbox& mailbox, const TableLayout& at, const std::vector<std::vector<int>>& pairs, int count)
      : words_(mailbox.table),
        weights_(mailbox.weights),
        shares_(reinterpret_cast<float*>(mailbox.table + at.shares_at)),
        at_(at),
        pairs_(pairs) {
    std::fill(shares_, shares_ + count, 0.0f);
  }

  // `fill`: a slot to write in passing, or 0; `wait`: the ticket of the copy that brings the block, or 0.
  void add(Word expert, std::uintptr_t block, std::uintptr_t fill, std::uint32_t wait) {
    words_[at_.blocks_at + experts_] = Word(block), words_[at_.fills_at + experts_] = Word(fill);
    words_[at_.waits_at + experts_] = wait, words_[at_.firsts_at + experts_] = rows_;
    for (const int pair : pairs_[std::size_t(expert)]) {
      words_[at_.rows_at + rows_++] = pair;
      shares_[pair] = weights_[pair];
    }
    ++experts_;
    order_.push_back(std::int32_t(expert));
  }

  // What is added from here on is not there yet.
  void begin_arriving() { words_[3] = experts_; }

  void end(int on_cpu) {
    words_[at_.firsts_at + experts_] = rows_;
    words_[2] = on_cpu;
    words_[0] = experts_;
  }

  // Which experts are in the table.
  void note(LayerWork& work) {
    for (const std::int32_t expert : order_) work.gpu_pairs.push_back(std::int32_t(pairs_[std::size_t(expert)].size()));
    work.gpu = std::move(order_);
    work.there = std::int32_t(words_[3]);
  }

 private:
  Word* words_;
  const float* weights_;
  float* shares_;
  const TableLayout& at_;
  const std::vector<std::vector<int>>& pairs_;
  std::vector<std::int32_t> order_;
  int experts_ = 0, rows_ = 0;
};

}  // namespace moesaic
