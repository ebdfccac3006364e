"""Triton helpers over packed strips (`native/layout/expert_layout.h`).

A strip of 16 outputs is a matrix of 32-bit words [inputs / per word, 16]: word (p, n) has the
consecutive inputs `per_word * p + i` of output n. bf16 has 2 per word, int8 4, int4 8; quantised
strips begin with bf16 scales [groups, 16]."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def low_half(word):
    """The bf16 value in the lower half of a word, as fp32."""
    return (word << 16).to(tl.float32, bitcast=True)


@triton.jit
def high_half(word):
    return (word & -65536).to(tl.float32, bitcast=True)


@triton.jit
def dot_words(words, x, at, inside, BITS: tl.constexpr):
    """Products of a block of words [P, N] with inputs `x` (bf16; `at` [P] is the first input of a
    word's), summed within the word: fp32 [P, N]. Scales are not applied."""
    if BITS == 16:
        x0 = tl.load(x + at, mask=inside, other=0).to(tl.float32)[:, None]
        x1 = tl.load(x + at + 1, mask=inside, other=0).to(tl.float32)[:, None]
        return low_half(words) * x0 + high_half(words) * x1
    elif BITS == 8:
        total = tl.zeros(words.shape, dtype=tl.float32)
        for i in tl.static_range(4):
            xi = tl.load(x + at + i, mask=inside, other=0).to(tl.float32)[:, None]
            total += ((words << (24 - 8 * i)) >> 24).to(tl.float32) * xi
        return total
    else:
        # Codes are stored as code + 8. With the exponent of 128 above it, a nibble is the bf16
        # number 128 + code + 8: no conversion, one correction by 136 times the sum of inputs.
        total = tl.zeros(words.shape, dtype=tl.float32)
        inputs = tl.zeros(at.shape, dtype=tl.float32)
        for j in tl.static_range(4):
            pair = ((words >> (4 * j)) & 0x000F000F) | 0x43004300
            x0 = tl.load(x + at + 2 * j, mask=inside, other=0).to(tl.float32)
            x1 = tl.load(x + at + 2 * j + 1, mask=inside, other=0).to(tl.float32)
            total += low_half(pair) * x0[:, None] + high_half(pair) * x1[:, None]
            inputs += x0 + x1
        return total - 136.0 * inputs[:, None]


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
