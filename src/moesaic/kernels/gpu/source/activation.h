// What a gate goes through, by the macro ACTIVATION (kernels/gpu/activations.py).
#pragma once

__device__ __forceinline__ float activate(float x) {
#if ACTIVATION == 0
  return x / (1 + __expf(-x));
#elif ACTIVATION == 1
  return 0.5f * x * (1 + erff(x * 0.7071067811865476f));
#else
  return 0.5f * x * (1 + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
#endif
}
