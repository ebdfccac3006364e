"""Triton helpers over packed strips (`native/layout/expert_layout.h`).

A strip of 16 outputs is a matrix of 32-bit words [inputs / per word, 16]: word (p, n) has the
consecutive inputs `per_word * p + i` of output n. bf16 has 2 per word, int8 4, int4 8; quantised
strips begin with bf16 scales [groups, 16]."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def plane(words, i: tl.constexpr, BITS: tl.constexpr):
    """Value i of every word, as bf16: exact, scales are not applied."""
    if BITS == 16:
        return ((words >> (16 * i)) & 0xFFFF).to(tl.int16).to(tl.bfloat16, bitcast=True)
    elif BITS == 8:
        return ((words << (24 - 8 * i)) >> 24).to(tl.float32).to(tl.bfloat16)
    else:
        shift: tl.constexpr = i // 2 * 4 + i % 2 * 16
        return (((words >> shift) & 15) - 8).to(tl.float32).to(tl.bfloat16)


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == "silu":
        return x / (1 + tl.exp(-x))
    elif ACTIVATION == "gelu":
        return 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    else:  # gelu_tanh: tanh(y) = 1 - 2 / (exp(2 y) + 1)
        y = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        return 0.5 * x * (2 - 2 / (tl.exp(2 * y) + 1))
