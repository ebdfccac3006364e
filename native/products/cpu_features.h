// Instruction set extensions that this CPU and operating system support; detected once.
#pragma once

namespace moesaic {

struct CpuFeatures {
  bool avx2 = false;         // with FMA and F16C
  bool avx512_base = false;  // F, DQ, BW and VL
  bool avx512 = false;       // these, VNNI and BF16
  bool amx = false;          // tiles, bf16 and int8, and permission from the operating system

  // Single extensions.
  bool avx512f = false, avx512_bf16 = false, avx512_vnni = false, avx_vnni = false;
};

const CpuFeatures& cpu_features();

}  // namespace moesaic
