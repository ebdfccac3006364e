// Causal attention of sequences with many new tokens, on the workers that multiply: blocks of keys and values
// are packed, multiplied in tiles or vectors as weights are, and softmax runs over the blocks in their order.
//
// Blocks begin at multiples of kKeyBlock positions and a block that a row does not see leaves it as it is: a
// row's bits depend neither on the other rows, nor on how a prompt was cut, nor on the workers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moesaic {

// Keys or values as a KV cache has them: bf16, or int8 codes with a scale in fp16 for every head, [positions, kv heads]
// (see kv_codes.h). Distances are in values.
struct CachedHeads {
  std::uint16_t* data = nullptr;
  std::size_t stride = 0, head_stride = 0;  // from position to position, from head to head
  std::int8_t* codes = nullptr;             // instead of `data`
  std::uint16_t* scales = nullptr;
};

// A sequence whose last tokens are new.
struct AttendedSequence {
  const std::uint16_t* queries = nullptr;  // bf16 [tokens, heads, width]
  CachedHeads keys, values;                // of `positions` tokens, the new ones at the end
  // Where the sequence's blocks of kKeyBlock positions lie among all that `keys` and `values` begin with. Null: the
  // positions lie side by side.
  const std::int32_t* blocks = nullptr;
  // Of the new tokens, bf16 [tokens, kv heads * width]: written into the cache first, rounded where it has codes. Null:
  // they are in the cache already.
  const std::uint16_t *new_keys = nullptr, *new_values = nullptr;
  int tokens = 0, positions = 0;
  int first = 0;                 // the position in the sequence of the first key; 0 with blocks
  std::uint16_t* out = nullptr;  // bf16 [tokens, heads, value_width]
};

// Sequences of which all tokens lie one after the other, in a cache of blocks: new keys and values are written there.
struct AttendedBatch {
  const std::uint16_t *queries = nullptr, *new_keys = nullptr, *new_values = nullptr;
  CachedHeads keys, values;  // of the first block
  std::uint16_t* out = nullptr;
  const std::int64_t* sequences = nullptr;  // [count, 4]: first row, tokens, positions, address of the blocks
  int count = 0;
};

// What the sequences of a call share. Query head h reads key head h / (heads / kv_heads).
struct AttentionShape {
  int heads = 0, kv_heads = 0;
  int width = 0, value_width = 0;  // of a head: multiples of 32, up to kMaxHeadWidth
  float scale = 1;
  int window = 0;                // positions that a token sees, its own included; 0: all before it
  const float* sinks = nullptr;  // [heads]: a score more, which takes its share and adds nothing; or null
};

}  // namespace moesaic
