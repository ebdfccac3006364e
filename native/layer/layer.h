// One layer's experts in one call: tokens are grouped by expert, every expert computes its tokens,
// and the results are weighted and added.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "products/kernels.h"
#include "pool/pool.h"
#include "layer/workspace.h"

namespace moesaic {

// What is asked, as plain pointers; everything must stay until the job is done, except `experts`,
// `blocks`, `ids` and `weights`, which are read at once.
struct LayerCall {
  const void* hidden = nullptr;  // [tokens, hidden], rows `hidden_stride` values apart
  Value hidden_value = Value::f32;
  std::size_t hidden_stride = 0;
  int tokens = 0, top_k = 0, experts_total = 0;
  const std::int64_t* ids = nullptr;  // [tokens, top_k]; experts not listed are left out
  const float* weights = nullptr;     // [tokens, top_k]
  int count = 0;                      // experts to compute, and where their blocks are
  const std::int32_t* experts = nullptr;
  const std::uint8_t* const* blocks = nullptr;
  void* out = nullptr;  // [tokens, hidden], contiguous; overwritten
  Value out_value = Value::f32;
  bool add = false;     // to what `out` holds (fp32 only)
  bool strict = true;  // refuse routing weights that are no numbers, rather than pass them on
};

// The arithmetic of one shape, precision and instruction set. May be used by many threads.
struct LayerKind {
  ExpertLayout layout;
  Activation activation;
  const Kernels* kernels;
  int tiles_from;  // tokens of an expert from which tiles are used; 0: never

  bool in_tiles(int tokens) const {
    return tiles_from > 0 && tokens >= tiles_from && kernels->tiles[int(layout.dtype)];
  }
  Product product(int tokens) const {
    return (in_tiles(tokens) ? kernels->tiles : kernels->vector)[int(layout.dtype)];
  }
  bool bf16_inside(int tokens) const {  // what lies between the products
    return layout.dtype == Dtype::bf16 || (layout.dtype == Dtype::int4 && in_tiles(tokens));
  }
  Fill fill(int tokens) const {
    if (layout.dtype == Dtype::int8) return kernels->fill_int8;
    if (layout.dtype == Dtype::int4 && !in_tiles(tokens)) return kernels->fill_int16;
    return kernels->fill_bf16;
  }
};

// What is wrong with a call, in words; empty if nothing.
std::string complaint(const LayerKind& kind, const LayerCall& call);

// Of a call with so many tokens, at most.
std::size_t workspace_bytes(const LayerKind& kind, int tokens, int top_k, int places);

std::shared_ptr<Work> layer_work(const LayerKind& kind, const LayerCall& call, Workspace& workspace,
                                 int places);

}  // namespace moesaic
