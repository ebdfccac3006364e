"""Latent attention of several new tokens per sequence over a cache in blocks, in Triton.

Tiles as in `prompt_attention.py`. Queries stand in the latents' space (absorbed), so that all heads
read the same latents: the pairs of a row and a head are one dimension, of which a program takes as
many as fit, and a decoded token beside a prompt fills one program with its heads instead of one row
of many.

Absorbed or expanded? Per head, with a rank of 512, 64 rotary values and heads 128 wide, a pair of
positions takes 2 x (512 + 64 + 512) = 2176 operations absorbed and 2 x (128 + 64 + 128) = 640 with
keys and values expanded from the latents. On both sides 2 x 512 x 256 = 262,144 come on top:
absorbed per new token (its query, its result), expanded per token that is seen, cached ones
included. Alone, a prompt of 1024 tokens takes 22.6 or 9.7 GFLOP in a layer with 16 heads: 13 of
difference, 40 us at a third of an H200's peak, where experts that are moved take milliseconds.
Absorbed was chosen for what it does not need. Expanded keys and values are 8 KB a position with 16
heads and 64 KB with 128 (4 GB at 64 K positions), which a captured step must hold at a fixed place;
a decoded token beside a prompt would expand its whole sequence for one row. Absorbed, a layer reads
1152 bytes a position from the cache, and nothing grows with the sequence. Where attention dominates
(long sequences, 128 heads, all experts resident), expanding is up to 3.4 times cheaper; that form
is not here."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources

from moesaic.kernels.gpu.cached_rows import rows_from
from moesaic.kernels.gpu.prompt_attention import ROWS
from moesaic.model_info.kv_blocks import KV_BLOCK


class Blocking(NamedTuple):
    """How a program is cut."""

    pairs: int  # of a row and a head
    positions: int  # that are loaded at once
    warps: int
    stages: int  # of loads under way


# The first that fits into a multiprocessor's shared memory: at DeepSeek's widths, compiled for
# Hopper, they need 216, 144 and 55 KB of 227.
BLOCKINGS = (Blocking(64, 64, 8, 2), Blocking(64, 32, 8, 2), Blocking(32, 16, 8, 2))
_INTERPRETED = Blocking(64, 32, 8, 1)


@triton.jit
def _attend_latents(
    query, turning, latents, keys, at, there, seen, top, total, result, scale,
    RANK: tl.constexpr, TURNS: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Add a block of positions to what was attended to so far."""
    column, turn = tl.arange(0, RANK), tl.arange(0, TURNS)
    latent = tl.load(
        latents + at[:, None] * RANK + column[None, :], mask=there[:, None], other=0
    ).to(DOT)  # fmt: skip
    key = tl.load(keys + at[:, None] * TURNS + turn[None, :], mask=there[:, None], other=0).to(DOT)
    score = tl.dot(query, tl.trans(latent))
    score = tl.dot(turning, tl.trans(key), score) * scale
    score = tl.where(seen, score, float("-inf"))
    higher = tl.maximum(top, tl.max(score, axis=1))  # position 0 is always seen: never -infinity
    weight = tl.exp(score - higher[:, None])
    shrink = tl.exp(top - higher)
    result = tl.dot(weight.to(tl.bfloat16).to(DOT), latent, result * shrink[:, None])
    return higher, total * shrink + tl.sum(weight, axis=1), result


@triton.jit
def _attend_pairs(
    queries, turned, latents, keys, table, tiles, out, tokens, of_slot, scale,
    HEADS: tl.constexpr, RANK: tl.constexpr, TURNS: tl.constexpr, PAIRS: tl.constexpr,
    BLOCK: tl.constexpr, DOT: tl.constexpr, LONGEST: tl.constexpr,
):  # fmt: skip
    """PAIRS pairs of a tile, whose latents are in the cache already. A prompt's last tiles, which
    see most, begin first. LONGEST: a sequence's length for the interpreter, whose loops need
    constants; else 0."""
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    count = tl.load(tiles + 4 * tile + 1)
    start = tl.program_id(0) * PAIRS
    if start >= count * HEADS:
        return
    first, position = tl.load(tiles + 4 * tile), tl.load(tiles + 4 * tile + 3)
    blocks = table + tl.load(tiles + 4 * tile + 2) * of_slot
    pair = start + tl.arange(0, PAIRS)
    row, head = pair // HEADS, pair % HEADS
    real = (row < count)[:, None]
    column, turn, ahead = tl.arange(0, RANK), tl.arange(0, TURNS), tl.arange(0, BLOCK)
    place = (head * tokens + first + row)[:, None] * RANK + column[None, :]
    query = tl.load(queries + place, mask=real, other=0).to(DOT)
    turn_place = ((first + row) * HEADS + head)[:, None] * TURNS + turn[None, :]
    turning = tl.load(turned + turn_place, mask=real, other=0).to(DOT)
    top = tl.full((PAIRS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((PAIRS,), dtype=tl.float32)
    result = tl.zeros((PAIRS, RANK), dtype=tl.float32)
    length = position + tl.minimum((start + PAIRS - 1) // HEADS + 1, count)
    if LONGEST:
        for begin in range(0, LONGEST, BLOCK):
            if begin < length:
                at = begin + ahead
                seen = at[None, :] <= (position + row)[:, None]
                top, total, result = _attend_latents(
                    query, turning, latents, keys, rows_from(blocks, begin, BLOCK), at < length,
                    seen, top, total, result, scale, RANK, TURNS, DOT,
                )  # fmt: skip
    else:
        for begin in range(0, length, BLOCK):
            at = begin + ahead
            seen = at[None, :] <= (position + row)[:, None]
            top, total, result = _attend_latents(
                query, turning, latents, keys, rows_from(blocks, begin, BLOCK), at < length, seen,
                top, total, result, scale, RANK, TURNS, DOT,
            )  # fmt: skip
    tl.store(out + place, (result / total[:, None]).to(tl.bfloat16), mask=real)


class LatentPromptAttention:
    """Of any number of tokens, of sequences of up to `of_slot` blocks."""

    def __init__(self, heads: int, rank: int, turns: int, of_slot: int, scale: float) -> None:
        assert rank & (rank - 1) == 0, "a latent's width is a power of two"
        assert turns & (turns - 1) == 0, "a rotary key's width is a power of two"
        self._shape = heads, rank, turns
        self._of_slot, self._scale = of_slot, scale
        self._blockings = list(BLOCKINGS)

    def launch(
        self, queries: torch.Tensor, turned: torch.Tensor, latents: torch.Tensor,
        keys: torch.Tensor, table: torch.Tensor, tiles: torch.Tensor,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """queries [heads, tokens, rank] and their rotary parts [tokens, heads, turns]; latents
        [blocks, tokens of a block, rank], rotary keys likewise; table [slots, of_slot] int32; tiles
        [count, 4] int64. Returns mixed latents [heads, tokens, rank], in `out` where it is given;
        rows without a tile are not written."""
        out = torch.empty_like(queries) if out is None else out
        given = (queries, turned, latents, keys, table, tiles, out)
        assert all(part.is_contiguous() for part in given), "as the kernel reads them"
        if not queries.is_cuda:
            self._launch(_INTERPRETED, given)
            return given[-1]
        while True:
            try:
                self._launch(self._blockings[0], given)
            except OutOfResources:  # before anything runs
                if len(self._blockings) == 1:
                    raise
                self._blockings.pop(0)
            else:
                return given[-1]

    def _launch(self, blocking: Blocking, given: tuple[torch.Tensor, ...]) -> None:
        heads, rank, turns = self._shape
        on_gpu, tokens, tiles = given[0].is_cuda, given[0].shape[1], len(given[5])
        _attend_pairs[(-(-ROWS * heads // blocking.pairs), tiles)](
            *given, tokens, self._of_slot, self._scale,
            HEADS=heads, RANK=rank, TURNS=turns, PAIRS=blocking.pairs, BLOCK=blocking.positions,
            DOT=tl.bfloat16 if on_gpu else tl.float32,
            LONGEST=0 if on_gpu else self._of_slot * KV_BLOCK,
            num_warps=blocking.warps, num_stages=blocking.stages,
        )  # fmt: skip
