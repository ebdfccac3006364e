// What the ways to compute a layer have in common: how tokens are grouped, where everything lies, and
// the steps. They differ in who does which step when: layer_few.cpp, layer_many.cpp.
#pragma once

#include <vector>

#include "layer/layer.h"
#include "layer/buffer_sizes.h"

namespace moesaic {

// Some tokens of one expert.
struct Chunk {
  const std::uint8_t* block;
  int tokens;
  int first;       // of its rows, in all rows of the call
  int wave_first;  // the same, within its wave
  Panel inner;
};

// A row is a token of an expert. Sorted by expert, experts with the most tokens first: what is last to
// start is short.
struct Rows {
  std::vector<Chunk> chunks;
  std::vector<std::int32_t> token;  // of every row
  std::vector<float> weight;

  explicit Rows(const LayerCall& call);
  int count() const { return int(token.size()); }
  int most_tokens() const { return chunks.empty() ? 0 : chunks.front().tokens; }
};

// Two places in memory that somebody reads next.
struct Next {
  const std::uint8_t* at[2];
};

class LayerBase : public Work {
 public:
  void leave() override;

 protected:
  LayerBase(const LayerKind& kind, const LayerCall& call, Rows rows, int places);

  // Memory for so many rows at a time, and for `more` bytes, where the address returned is.
  std::uint8_t* lay_out(Workspace& workspace, int rows, std::size_t more);

  // Strips of gate and as many of up: both products, activation, and their product, which goes to the
  // chunk's inner panel or, where that has codes, waits for `fill_inner`.
  void gate_and_up(int which, int strip, int strips, int worker, const Next& next);
  void fill_inner(const Chunk& chunk, int tile);

  // Strips of down, times what is inside: to c, [strip][token][16].
  void down_product(const Chunk& chunk, int strip, int strips, float* c, int worker, const Next& next);
  // A chunk's share of the result.
  void add(const Chunk& chunk, int strip, int strips, const float* c);
  void begin_sums(int strip, int strips);
  void end_sums(int strip, int strips);

  Next gate_and_up_at(const Chunk& chunk, int strip) const;
  Next down_at(const Chunk& chunk, int strip) const;
  float* c_of(int worker) { return reinterpret_cast<float*>(own_of(worker)); }

  const LayerKind kind_;
  const LayerCall call_;
  const int places_;
  Rows rows_;

 private:
  Panel own_inputs(int which, int worker);
  void gather(const Chunk& chunk, const Panel& to);
  void fill(const Chunk& chunk, const Panel& panel, int tile, const void* const* rows, Value value,
            int inputs, std::size_t step);
  void activate_into_panel(const Chunk& chunk, int strip, const float* gate, const float* up);
  float* inner_strip(const Chunk& chunk, int strip);
  float* sum_strip(int strip) { return sum_ + std::size_t(strip) * call_.tokens * kStripOutputs; }
  int width(int strip) const {
    return std::min(kStripOutputs, kind_.layout.hidden - strip * kStripOutputs);
  }

  template <class T>
  T* out_at(int token, int strip) const {
    return static_cast<T*>(call_.out) + std::size_t(token) * kind_.layout.hidden + strip * kStripOutputs;
  }

  // A worker's own memory: sums of a product, a chunk's inputs, what kernels unpack.
  std::uint8_t* own_of(int worker) { return own_ + worker * own_size_.all; }
  std::uint8_t* scratch_of(int worker) { return own_of(worker + 1) - kScratchBytes; }
  Panel in_of(int worker);

  const Buffers buffers_;
  const Own own_size_;
  const bool one_panel_;    // one token: the same inputs for every expert
  std::vector<int> held_;  // whose inputs each worker has gathered
  std::uint8_t* own_ = nullptr;
  float *inner_ = nullptr, *sum_ = nullptr;
};

std::shared_ptr<Work> few_tokens(const LayerKind& kind, const LayerCall& call, Rows rows,
                                 Workspace& workspace, int places);
std::shared_ptr<Work> many_tokens(const LayerKind& kind, const LayerCall& call, Rows rows,
                                  Workspace& workspace, int places);

}  // namespace moesaic
