"""Latent attention of one new token per sequence over a cache in blocks, in Triton.

All heads read the same latents: queries stand in the latents' space already, and what is mixed are
latents. Cut into pieces and joined as in `attention.py`; what was in the cache before is read
while queries are made."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from moesaic.kernels.gpu.attention import PIECE, early_launch, join_pieces, with_block
from moesaic.kernels.gpu.cached_rows import row_of, rows_from
from moesaic.model_info.kv_blocks import KV_BLOCK

_BLOCK = 32
_HEADS = 16  # of a program
_MOST_PIECES = 64  # as in source/latent.cu: every piece has a result of its own in memory
_SHORTEST_PIECE = 64  # of a single token
_PROGRAMS = 128  # that a GPU has room for


@triton.jit
def _scores(query, turning, latent, key, scale, DOT: tl.constexpr):
    score = tl.dot(query.to(DOT), tl.trans(latent).to(DOT))
    return (score + tl.dot(turning.to(DOT), tl.trans(key).to(DOT))) * scale


@triton.jit
def _attend_latents(
    queries, turned, latents, keys, table, slots, positions, mixed, tops, sums,
    of_slot, scale, pieces,
    HEADS: tl.constexpr, RANK: tl.constexpr, TURNS: tl.constexpr, GROUP: tl.constexpr,
    PIECE: tl.constexpr, BLOCK: tl.constexpr, DOT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One token, GROUP heads, one piece."""
    piece, token = tl.program_id(0), tl.program_id(2)
    position = tl.load(positions + token)  # as the slot, there before anything of the layer
    blocks = table + tl.load(slots + token) * of_slot
    column, turn = tl.arange(0, RANK)[None, :], tl.arange(0, TURNS)[None, :]
    first = piece * PIECE + tl.arange(0, BLOCK)
    there = first < position
    row = rows_from(blocks, piece * PIECE, BLOCK)[:, None]
    latent = tl.load(latents + row * RANK + column, mask=there[:, None], other=0)
    key = tl.load(keys + row * TURNS + turn, mask=there[:, None], other=0)
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if piece * PIECE > position:
        return
    head = tl.program_id(1) * GROUP + tl.arange(0, GROUP)
    real = head < HEADS
    line = (token * HEADS + head)[:, None]
    query = tl.load(queries + line * RANK + column, mask=real[:, None], other=0)
    turning = tl.load(turned + line * TURNS + turn, mask=real[:, None], other=0)
    # The piece that holds the new token begins with it.
    holds, own = piece == position // PIECE, row_of(blocks, position)
    new_latent = tl.load(latents + own * RANK + column).to(tl.float32)
    new_key = tl.load(keys + own * TURNS + turn).to(tl.float32)
    score = tl.sum(query.to(tl.float32) * new_latent, axis=1)
    score = (score + tl.sum(turning.to(tl.float32) * new_key, axis=1)) * scale
    weight = tl.exp(score - score)  # 1, or no number where the score is none
    top = tl.where(holds, score, float("-inf"))
    total = tl.where(holds, weight, 0.0)
    result = tl.where(holds, weight[:, None] * new_latent, 0.0)
    if piece * PIECE < position:
        scores = _scores(query, turning, latent, key, scale, DOT)
        top, total, result = with_block(scores, latent, there, top, total, result, DOT)
    for start in range(BLOCK, PIECE, BLOCK):
        if piece * PIECE + start < position:
            at = first + start
            before = (at < position)[:, None]
            row = rows_from(blocks, piece * PIECE + start, BLOCK)[:, None]
            others = tl.load(latents + row * RANK + column, mask=before, other=0)
            their_keys = tl.load(keys + row * TURNS + turn, mask=before, other=0)
            scores = _scores(query, turning, others, their_keys, scale, DOT)
            top, total, result = with_block(scores, others, at < position, top, total, result, DOT)
    place = (token * HEADS + head).to(tl.int64) * pieces + piece
    tl.store(tops + place, top, mask=real)
    tl.store(sums + place, total, mask=real)
    tl.store(mixed + place[:, None] * RANK + column, result, mask=real[:, None])


def piece_size(max_length: int, tokens: int, heads: int) -> int:
    """Positions of a piece. A single token's are shorter where a GPU would be idle otherwise."""
    piece = PIECE
    while max_length > _MOST_PIECES * piece:
        piece *= 2
    groups = -(-heads // _HEADS)
    while (
        tokens == 1
        and piece > _SHORTEST_PIECE
        and max_length <= _MOST_PIECES * piece // 2
        and groups * -(-max_length // piece) < _PROGRAMS
    ):
        piece //= 2
    return piece


class LatentDecodeAttention:
    """Of up to so many tokens; buffers stay where they are. A sequence has up to `of_slot`
    blocks."""

    def __init__(
        self, tokens: int, heads: int, rank: int, turns: int, of_slot: int, scale: float,
        device: str = "cuda",
    ) -> None:  # fmt: skip
        assert rank & (rank - 1) == 0, "a latent's width is a power of two"
        assert turns & (turns - 1) == 0, "a rotary key's width is a power of two"
        self._shape = heads, rank, turns
        self._of_slot, self._scale, self._tokens = of_slot, scale, tokens
        max_length = of_slot * KV_BLOCK
        self.piece = piece_size(max_length, tokens, heads)
        self.pieces = -(-max_length // self.piece)
        each = (tokens, heads, self.pieces)
        self.mixed = torch.zeros(*each, rank, dtype=torch.float32, device=device)
        self.tops = torch.zeros(each, dtype=torch.float32, device=device)
        self.sums = torch.zeros(each, dtype=torch.float32, device=device)
        self.out = torch.zeros(tokens, heads, rank, dtype=torch.bfloat16, device=device)

    def launch(
        self, queries: torch.Tensor, turned: torch.Tensor, latents: torch.Tensor,
        keys: torch.Tensor, table: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        """queries [tokens, heads, rank] and their rotary parts [tokens, heads, turns]; latents
        [blocks, tokens of a block, rank], rotary keys likewise; `table` [slots, of_slot] has the
        blocks of sequences; positions of the newest tokens, which are in the cache already. Returns
        mixed latents [tokens, heads, rank]."""
        heads, rank, _ = self._shape
        self.launch_pieces(queries, turned, latents, keys, table, slots, positions)
        join_pieces(
            self.mixed, self.tops, self.sums, positions, self.out.view(self._tokens, -1),
            heads, rank, self.piece,
        )  # fmt: skip
        return self.out

    def launch_pieces(
        self, queries: torch.Tensor, turned: torch.Tensor, latents: torch.Tensor,
        keys: torch.Tensor, table: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor,
    ) -> None:  # fmt: skip
        """The same without joining: `mixed`, `tops` and `sums` of every piece."""
        heads, rank, turns = self._shape
        grid = (self.pieces, -(-heads // _HEADS), self._tokens)
        _attend_latents[grid](
            queries, turned, latents, keys, table, slots, positions, self.mixed, self.tops,
            self.sums, self._of_slot, self._scale, self.pieces,
            HEADS=heads, RANK=rank, TURNS=turns, GROUP=_HEADS, PIECE=self.piece, BLOCK=_BLOCK,
            DOT=tl.bfloat16 if queries.is_cuda else tl.float32, num_warps=8,
            **early_launch(queries),
        )  # fmt: skip
