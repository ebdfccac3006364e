"""Experts with several rows each: weights are unpacked once and multiplied on the tensor cores.

A program computes M rows of one expert by a few strips; the weights it reads come from the L2
cache for all but the first of an expert's row blocks."""

from __future__ import annotations

import triton
import triton.language as tl

from moesaic.kernels.gpu.unpack import activate, plane


@triton.jit
def _find(
    table, expert,
    FILLS_AT: tl.constexpr, WAITS_AT: tl.constexpr,
):  # fmt: skip
    """An expert's block and the slot to fill, as addresses, once its copy has ended."""
    ticket = tl.load(table + WAITS_AT + expert)
    if ticket != 0:
        flag = tl.load(table + 1).to(tl.pointer_type(tl.int32))
        while tl.load(flag, volatile=True) < ticket:
            pass
    return tl.load(table + 8 + expert), tl.load(table + FILLS_AT + expert)


@triton.jit
def _copy_scales(
    source, fill, wanted,
    SCALE_WORDS: tl.constexpr, STRIP_WORDS: tl.constexpr, STRIPS: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    word = tl.arange(0, 16)
    for strip in tl.static_range(STRIPS):
        for start in range(0, SCALE_WORDS, 16):
            at = strip * STEP * STRIP_WORDS + start + word
            tl.store(fill + at, tl.load(source + at), mask=wanted & (word < 16))


@triton.jit
def _strips_dot(
    source, fill, wanted, x, x_rows, inside_row, width,
    ROWS: tl.constexpr, SCALE_WORDS: tl.constexpr, STRIP_WORDS: tl.constexpr,
    BITS: tl.constexpr, P: tl.constexpr, STRIPS: tl.constexpr, STEP: tl.constexpr,
    M: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """fp32 [M, 16 * STRIPS] of strips that stand STEP strips apart; what is read is written to
    `fill` where that is `wanted`. `x_rows` are the rows' first values in `x`; `width` inputs of
    them count. Triton's interpreter multiplies bf16 wrongly: DOT is fp32 there, and the same
    numbers are multiplied."""
    PER_WORD: tl.constexpr = 32 // BITS
    column = tl.arange(0, 16 * STRIPS)
    strip_at = (column // 16) * (STEP * STRIP_WORDS)
    lane = column % 16
    row = tl.arange(0, P)
    total = tl.zeros((M, 16 * STRIPS), dtype=tl.float32)
    if SCALE_WORDS > 0:
        _copy_scales(source, fill, wanted, SCALE_WORDS, STRIP_WORDS, STRIPS, STEP)
    for start in range(0, ROWS, P):
        inside = start + row < ROWS
        at = strip_at[None, :] + SCALE_WORDS + (start + row)[:, None] * 16 + lane[None, :]
        words = tl.load(source + at, mask=inside[:, None], other=0)
        tl.store(fill + at, words, mask=inside[:, None] & wanted)
        first = (start + row) * PER_WORD
        there = inside_row[:, None] & (first < width)[None, :]
        if BITS == 4:
            scales = source.to(tl.pointer_type(tl.bfloat16)) + 2 * strip_at[None, :]
            scale_at = ((start + row) // 4)[:, None] * 16 + lane[None, :]
            scale = tl.load(scales + scale_at, mask=inside[:, None], other=0)
        part = tl.zeros((M, 16 * STRIPS), dtype=tl.float32)
        for i in tl.static_range(PER_WORD):
            values = tl.load(x + x_rows[:, None] + first[None, :] + i, mask=there, other=0)
            weights = plane(words, i, BITS)
            if BITS == 4:
                weights = (weights.to(tl.float32) * scale.to(tl.float32)).to(tl.bfloat16)
            part = tl.dot(values.to(DOT), weights.to(DOT), part)
        if BITS == 8:  # P rows of words are one group of 256 inputs
            scales = source.to(tl.pointer_type(tl.bfloat16)) + 2 * strip_at
            part *= tl.load(scales + (start // 64) * 16 + lane).to(tl.float32)[None, :]
        total += part
    return total


@triton.jit
def up_matrix(
    table, x, inner, hidden, intermediate, top_k,
    FILLS_AT: tl.constexpr, WAITS_AT: tl.constexpr,
    FIRSTS_AT: tl.constexpr, ROWS_AT: tl.constexpr,
    ROWS: tl.constexpr, SCALE_WORDS: tl.constexpr, STRIP_WORDS: tl.constexpr,
    BITS: tl.constexpr, ACTIVATION: tl.constexpr,
    P: tl.constexpr, STRIPS: tl.constexpr, M: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    expert, strip = tl.program_id(1), tl.program_id(0) * STRIPS
    if expert >= tl.load(table):
        return
    first = tl.load(table + FIRSTS_AT + expert)
    end = tl.load(table + FIRSTS_AT + expert + 1)
    start = first + tl.program_id(2) * M
    if start >= end:
        return
    block, fill = _find(table, expert, FILLS_AT, WAITS_AT)
    wanted = (fill != 0) & (tl.program_id(2) == 0)
    gate_at = block.to(tl.pointer_type(tl.int32)) + 2 * strip * STRIP_WORDS
    fill_at = fill.to(tl.pointer_type(tl.int32)) + 2 * strip * STRIP_WORDS
    output = strip * 16 + tl.arange(0, 16 * STRIPS)
    at = start + tl.arange(0, M)
    pair = tl.load(table + ROWS_AT + at, mask=at < end, other=0)
    x_rows = (pair // top_k) * hidden
    gate = _strips_dot(
        gate_at, fill_at, wanted, x, x_rows, at < end, hidden,
        ROWS, SCALE_WORDS, STRIP_WORDS, BITS, P, STRIPS, 2, M, DOT,
    )  # fmt: skip
    up = _strips_dot(
        gate_at + STRIP_WORDS, fill_at + STRIP_WORDS, wanted, x, x_rows, at < end, hidden,
        ROWS, SCALE_WORDS, STRIP_WORDS, BITS, P, STRIPS, 2, M, DOT,
    )  # fmt: skip
    value = (activate(gate, ACTIVATION) * up).to(tl.bfloat16)
    there = (at < end)[:, None] & (output < intermediate)[None, :]
    tl.store(inner + pair[:, None] * intermediate + output[None, :], value, mask=there)


@triton.jit
def down_matrix(
    table, inner, parts, hidden, intermediate,
    FILLS_AT: tl.constexpr, WAITS_AT: tl.constexpr,
    FIRSTS_AT: tl.constexpr, ROWS_AT: tl.constexpr, DOWN_AT: tl.constexpr,
    ROWS: tl.constexpr, SCALE_WORDS: tl.constexpr, STRIP_WORDS: tl.constexpr,
    BITS: tl.constexpr, P: tl.constexpr, STRIPS: tl.constexpr, M: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    expert, strip = tl.program_id(1), tl.program_id(0) * STRIPS
    if expert >= tl.load(table):
        return
    first = tl.load(table + FIRSTS_AT + expert)
    end = tl.load(table + FIRSTS_AT + expert + 1)
    start = first + tl.program_id(2) * M
    if start >= end:
        return
    block, fill = _find(table, expert, FILLS_AT, WAITS_AT)
    wanted = (fill != 0) & (tl.program_id(2) == 0)
    source = block.to(tl.pointer_type(tl.int32)) + DOWN_AT + strip * STRIP_WORDS
    target = fill.to(tl.pointer_type(tl.int32)) + DOWN_AT + strip * STRIP_WORDS
    output = strip * 16 + tl.arange(0, 16 * STRIPS)
    at = start + tl.arange(0, M)
    pair = tl.load(table + ROWS_AT + at, mask=at < end, other=0)
    total = _strips_dot(
        source, target, wanted, inner, pair * intermediate, at < end, intermediate,
        ROWS, SCALE_WORDS, STRIP_WORDS, BITS, P, STRIPS, 1, M, DOT,
    )  # fmt: skip
    there = (at < end)[:, None] & (output < hidden)[None, :]
    tl.store(parts + pair[:, None] * hidden + output[None, :], total, mask=there)
