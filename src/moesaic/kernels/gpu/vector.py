"""Experts with one row each, as in decoding one sequence: reading weights is all that takes time.

A program computes the outputs of a few strips, reads them once, front to back, and writes what it
read to a slot where the table asks for it."""

from __future__ import annotations

import triton
import triton.language as tl

from moesaic.kernels.gpu.unpack import activate, dot_words


@triton.jit
def _strip_product(
    source, fill, x, inputs,
    ROWS: tl.constexpr, SCALE_WORDS: tl.constexpr, STRIP_WORDS: tl.constexpr,
    BITS: tl.constexpr, P: tl.constexpr, STRIPS: tl.constexpr, FILLS: tl.constexpr,
):  # fmt: skip
    """Outputs of neighbouring strips at `source` (words), fp32 [16 * STRIPS]. P rows of words are
    read at a time; `fill` is 0, or the address of a copy to write."""
    PER_WORD: tl.constexpr = 32 // BITS
    column = tl.arange(0, 16 * STRIPS)
    strip_at = (column // 16) * STRIP_WORDS
    lane = column % 16
    row = tl.arange(0, P)
    total = tl.zeros((P, 16 * STRIPS), dtype=tl.float32)
    for start in range(0, ROWS, P):
        inside = start + row < ROWS
        at = strip_at[None, :] + SCALE_WORDS + (start + row)[:, None] * 16 + lane[None, :]
        words = tl.load(source + at, mask=inside[:, None], other=0)
        if FILLS:
            tl.store(fill + at, words, mask=inside[:, None])
        first = (start + row) * PER_WORD
        part = dot_words(words, x, first, first < inputs, BITS)
        if BITS != 16:
            group = (start + row) // (64 if BITS == 8 else 4)
            scales = source.to(tl.pointer_type(tl.bfloat16)) + 2 * strip_at[None, :]
            scale_at = group[:, None] * 16 + lane[None, :]
            part *= tl.load(scales + scale_at, mask=inside[:, None], other=0).to(tl.float32)
        total += part
    return tl.sum(total, axis=0)


@triton.jit
def _copy_scales(
    source, fill,
    SCALE_WORDS: tl.constexpr, STRIP_WORDS: tl.constexpr, STRIPS: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    word = tl.arange(0, P)
    for strip in tl.static_range(STRIPS):
        for start in range(0, SCALE_WORDS, P):
            at = strip * STRIP_WORDS + start + word
            inside = start + word < SCALE_WORDS
            tl.store(fill + at, tl.load(source + at, mask=inside, other=0), mask=inside)


@triton.jit
def up_vector(
    table, x, inner, hidden, intermediate, top_k,
    FILLS_AT: tl.constexpr, FIRSTS_AT: tl.constexpr, ROWS_AT: tl.constexpr,
    ROWS: tl.constexpr, SCALE_WORDS: tl.constexpr, STRIP_WORDS: tl.constexpr,
    BITS: tl.constexpr, ACTIVATION: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """inner[pair] = activation(gate(x)) * up(x); one strip of each per program."""
    expert, strip = tl.program_id(1), tl.program_id(0)
    if expert >= tl.load(table):
        return
    block = tl.load(table + 8 + expert)
    fill = tl.load(table + FILLS_AT + expert)
    pair = tl.load(table + ROWS_AT + tl.load(table + FIRSTS_AT + expert))
    x += (pair // top_k) * hidden
    at = 2 * strip * STRIP_WORDS
    source = block.to(tl.pointer_type(tl.int32)) + at
    # Gate and up are neighbours: both are read as one pair of strips.
    if fill != 0:
        target = fill.to(tl.pointer_type(tl.int32)) + at
        if SCALE_WORDS > 0:
            _copy_scales(source, target, SCALE_WORDS, STRIP_WORDS, 2, P)
        both = _strip_product(
            source, target, x, hidden, ROWS, SCALE_WORDS, STRIP_WORDS, BITS, P, 2, True
        )
    else:
        both = _strip_product(
            source, source, x, hidden, ROWS, SCALE_WORDS, STRIP_WORDS, BITS, P, 2, False
        )
    gate, up = tl.split(tl.trans(tl.reshape(both, (2, 16))))
    output = strip * 16 + tl.arange(0, 16)
    value = activate(gate, ACTIVATION) * up
    tl.store(
        inner + pair * intermediate + output, value.to(tl.bfloat16), mask=output < intermediate
    )


@triton.jit
def down_vector(
    table, inner, parts, hidden, intermediate,
    FILLS_AT: tl.constexpr, FIRSTS_AT: tl.constexpr, ROWS_AT: tl.constexpr,
    DOWN_AT: tl.constexpr,
    ROWS: tl.constexpr, SCALE_WORDS: tl.constexpr, STRIP_WORDS: tl.constexpr,
    BITS: tl.constexpr, P: tl.constexpr, STRIPS: tl.constexpr,
):  # fmt: skip
    """parts[pair] = down(inner[pair]), fp32; a few strips per program."""
    expert, strip = tl.program_id(1), tl.program_id(0) * STRIPS
    if expert >= tl.load(table):
        return
    block = tl.load(table + 8 + expert)
    fill = tl.load(table + FILLS_AT + expert)
    pair = tl.load(table + ROWS_AT + tl.load(table + FIRSTS_AT + expert))
    inner += pair * intermediate
    at = DOWN_AT + strip * STRIP_WORDS
    source = block.to(tl.pointer_type(tl.int32)) + at
    if fill != 0:
        target = fill.to(tl.pointer_type(tl.int32)) + at
        if SCALE_WORDS > 0:
            _copy_scales(source, target, SCALE_WORDS, STRIP_WORDS, STRIPS, P)
        total = _strip_product(
            source, target, inner, intermediate,
            ROWS, SCALE_WORDS, STRIP_WORDS, BITS, P, STRIPS, True,
        )  # fmt: skip
    else:
        total = _strip_product(
            source, source, inner, intermediate,
            ROWS, SCALE_WORDS, STRIP_WORDS, BITS, P, STRIPS, False,
        )  # fmt: skip
    output = strip * 16 + tl.arange(0, 16 * STRIPS)
    tl.store(parts + pair * hidden + output, total, mask=output < hidden)
