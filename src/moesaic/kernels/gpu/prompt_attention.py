"""Attention of several new tokens per sequence over a KV cache in blocks, in Triton.

The new tokens stand one after the other, and every sequence's are cut into tiles of up to ROWS. A
tile is four numbers: its first row, how many rows it has, the sequence's slot, the position of its
first row. Tiles without rows end at once, so one captured launch serves every mixture of
prompts and decoded tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from moesaic.kernels.gpu.cached_rows import rows_from
from moesaic.model_info.kv_blocks import KV_BLOCK

ROWS = 64
_BLOCK = KV_BLOCK


class Tile(NamedTuple):
    row: int
    rows: int
    slot: int
    position: int


@triton.jit
def _attend_block(
    query, keys, values, cached, there, seen, top, total, result, scale, DOT: tl.constexpr
):
    """Add a block of keys and values to what was attended to so far."""
    key = tl.load(keys + cached, mask=there[:, None], other=0)
    score = tl.dot(query.to(DOT), tl.trans(key).to(DOT)) * scale
    score = tl.where(seen, score, float("-inf"))
    higher = tl.maximum(top, tl.max(score, axis=1))  # position 0 is always seen: never -infinity
    weight = tl.exp(score - higher[:, None])
    shrink = tl.exp(top - higher)
    value = tl.load(values + cached, mask=there[:, None], other=0)
    part = tl.dot(weight.to(tl.bfloat16).to(DOT), value.to(DOT))
    return higher, total * shrink + tl.sum(weight, axis=1), result * shrink[:, None] + part


@triton.jit
def _attend_tile(
    queries, keys, values, table, tiles, out, of_slot, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, DOT: tl.constexpr, LONGEST: tl.constexpr,
):  # fmt: skip
    """One query head of a tile; its keys and values are in the cache already. LONGEST: a
    sequence's length for the interpreter, whose loops need constants; else 0."""
    head, tile = tl.program_id(0), tl.program_id(1)
    count = tl.load(tiles + 4 * tile + 1)
    if count == 0:
        return
    first, position = tl.load(tiles + 4 * tile), tl.load(tiles + 4 * tile + 3)
    blocks = table + tl.load(tiles + 4 * tile + 2) * of_slot
    kv_head = head // (HEADS // KV_HEADS)
    row, column, ahead = tl.arange(0, ROWS), tl.arange(0, WIDTH), tl.arange(0, BLOCK)
    real = row < count
    at = ((first + row) * HEADS + head)[:, None] * WIDTH + column[None, :]
    query = tl.load(queries + at, mask=real[:, None], other=0)
    top = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    result = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    length = position + count
    if LONGEST:
        for start in range(0, LONGEST, BLOCK):
            if start < length:
                at_key = start + ahead
                cached = rows_from(blocks, start, BLOCK) * KV_HEADS + kv_head
                cached = cached[:, None] * WIDTH + column[None, :]
                seen = at_key[None, :] <= (position + row)[:, None]
                top, total, result = _attend_block(
                    query, keys, values, cached, at_key < length, seen, top, total, result, scale,
                    DOT,
                )  # fmt: skip
    else:
        for start in range(0, length, BLOCK):
            at_key = start + ahead
            cached = rows_from(blocks, start, BLOCK) * KV_HEADS + kv_head
            cached = cached[:, None] * WIDTH + column[None, :]
            seen = at_key[None, :] <= (position + row)[:, None]
            top, total, result = _attend_block(
                query, keys, values, cached, at_key < length, seen, top, total, result, scale, DOT
            )
    result = result / total[:, None]
    tl.store(out + at, result.to(tl.bfloat16), mask=real[:, None])


def tiles_of(segments: Iterable[tuple[int, int, int]]) -> list[Tile]:
    """Of sequences whose new tokens stand in this order: slot, first position, tokens."""
    tiles, row = [], 0
    for slot, position, tokens in segments:
        for start in range(0, tokens, ROWS):
            rows = min(ROWS, tokens - start)
            tiles.append(Tile(row + start, rows, slot, position + start))
        row += tokens
    return tiles


def most_tiles(tokens: int, sequences: int) -> int:
    """That so many tokens of so many sequences can have."""
    return min(tokens, tokens // ROWS + sequences)


class PromptAttention:
    """Grouped-query attention of up to so many tokens, of sequences of up to `of_slot` blocks; its
    buffer stays where it is."""

    def __init__(
        self, tokens: int, heads: int, kv_heads: int, width: int, of_slot: int, scale: float,
        device: str = "cuda",
    ) -> None:  # fmt: skip
        assert heads % kv_heads == 0, "every KV head serves as many query heads"
        assert width & (width - 1) == 0, "a head's width is a power of two"
        self._shape = heads, kv_heads, width
        self._of_slot, self._scale = of_slot, scale
        self.out = torch.zeros(tokens, heads * width, dtype=torch.bfloat16, device=device)

    def launch(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, table: torch.Tensor,
        tiles: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        """queries [tokens, heads, width], keys and values [blocks, tokens of a block, kv heads,
        width], table [slots, of_slot] int32, tiles [count, 4] int64. Rows without a tile are left
        as they are."""
        heads, kv_heads, width = self._shape
        _attend_tile[(heads, len(tiles))](
            queries, keys, values, table, tiles, self.out, self._of_slot, self._scale,
            HEADS=heads, KV_HEADS=kv_heads, WIDTH=width, ROWS=ROWS, BLOCK=_BLOCK,
            DOT=tl.bfloat16 if queries.is_cuda else tl.float32,
            LONGEST=0 if queries.is_cuda else self._of_slot * KV_BLOCK,
        )  # fmt: skip
        return self.out
