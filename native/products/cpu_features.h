// What this CPU can do, asked once.
#pragma once

namespace moesaic {

struct Cpu {
  bool avx2 = false;    // with FMA and F16C
  bool avx512 = false;  // F, BW, VL, VNNI and BF16
  bool amx = false;     // tiles, bf16 and int8; and the system lets us use them
};

const Cpu& cpu();

}  // namespace moesaic
