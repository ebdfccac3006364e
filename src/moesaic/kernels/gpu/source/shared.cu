// A gated network that every token goes through, in bf16, for one token. The macros HIDDEN, INNER and ACTIVATION are given
// by the caller. Rounding follows kernels/reference.py.

#include "activation.h"
#include "row_reads.h"

// inner = activation(gate(x)) * up(x) for one token. Rows of `weights`: gate's, then up's. 256 threads, an output of each per warp.
extern "C" __global__ void __launch_bounds__(256, 2) gated_product(const u16* x, const u16* weights, u16* inner) {
  __shared__ __align__(16) float inputs[HIDDEN];
  const int output = blockIdx.x * 8 + threadIdx.x / 32;
  const u16 *gate = weights + i64(output) * HIDDEN, *up = gate + i64(INNER) * HIDDEN;
  RowReads<HIDDEN, 8> gates, ups;
  if (output < INNER) gates.read(gate), ups.read(up);
  await_previous();
  release_next();
  for (int i = threadIdx.x; i < HIDDEN; i += 256) inputs[i] = wide(x[i]);
  __syncthreads();
  if (output >= INNER) return;
  const float first = gates.dot(gate, inputs), second = ups.dot(up, inputs);
  if (threadIdx.x % 32 == 0) inner[output] = to_bf16(activate(rounded(first)) * rounded(second));
}

// out = inner @ weights.T, its second product. 256 threads, an output per warp.
extern "C" __global__ void __launch_bounds__(256) down_product(const u16* inner, const u16* weights, u16* out) {
  const int output = blockIdx.x * 8 + threadIdx.x / 32;
  const float sum = row_dot<INNER>(inner, weights, output, HIDDEN);
  if (output < HIDDEN && threadIdx.x % 32 == 0) out[output] = to_bf16(sum);
}
