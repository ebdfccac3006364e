"""Latent attention of one new token per sequence over a static cache, in Triton.

All heads read the same latents: queries stand in the latents' space already, and what is mixed are
latents. Cut into pieces and joined as in `attention.py`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from moesaic.kernels.gpu.attention import PIECE, early_launch, join_pieces

_BLOCK = 32
_HEADS = 16  # of a program
_MOST_PIECES = 64  # as in source/latent.cu: every piece has a result of its own in memory
_SHORTEST_PIECE = 64  # of a single token
_PROGRAMS = 128  # that a GPU has room for


@triton.jit
def _attend_latents(
    queries, turned, latents, keys, slots, positions, mixed, tops, sums, max_length, scale, pieces,
    HEADS: tl.constexpr, RANK: tl.constexpr, TURNS: tl.constexpr, GROUP: tl.constexpr,
    PIECE: tl.constexpr, BLOCK: tl.constexpr, DOT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One token, GROUP heads, one piece."""
    piece, token = tl.program_id(0), tl.program_id(2)
    length = tl.load(positions + token) + 1  # as the slot, there before anything of the layer
    base = tl.load(slots + token) * max_length
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if piece * PIECE >= length:
        return
    head = tl.program_id(1) * GROUP + tl.arange(0, GROUP)
    real = head < HEADS
    column, turn = tl.arange(0, RANK), tl.arange(0, TURNS)
    row = (token * HEADS + head)[:, None]
    query = tl.load(queries + row * RANK + column[None, :], mask=real[:, None], other=0)
    turning = tl.load(turned + row * TURNS + turn[None, :], mask=real[:, None], other=0)
    top = tl.full((GROUP,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((GROUP,), dtype=tl.float32)
    result = tl.zeros((GROUP, RANK), dtype=tl.float32)
    for start in range(0, PIECE, BLOCK):
        if piece * PIECE + start < length:
            at = piece * PIECE + start + tl.arange(0, BLOCK)
            there = at < length
            latent = tl.load(
                latents + (base + at)[:, None] * RANK + column[None, :],
                mask=there[:, None], other=0,
            )  # fmt: skip
            key = tl.load(
                keys + (base + at)[:, None] * TURNS + turn[None, :], mask=there[:, None], other=0
            )
            score = tl.dot(query.to(DOT), tl.trans(latent).to(DOT))
            score = (score + tl.dot(turning.to(DOT), tl.trans(key).to(DOT))) * scale
            score = tl.where(there[None, :], score, float("-inf"))
            higher = tl.maximum(top, tl.max(score, axis=1))
            weight = tl.exp(score - higher[:, None])
            shrink = tl.exp(top - higher)
            part = tl.dot(weight.to(tl.bfloat16).to(DOT), latent.to(DOT))
            result = result * shrink[:, None] + part
            total = total * shrink + tl.sum(weight, axis=1)
            top = higher
    place = (token * HEADS + head).to(tl.int64) * pieces + piece
    tl.store(tops + place, top, mask=real)
    tl.store(sums + place, total, mask=real)
    tl.store(mixed + place[:, None] * RANK + column[None, :], result, mask=real[:, None])


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
    """Of up to so many tokens; buffers stay where they are."""

    def __init__(
        self, tokens: int, heads: int, rank: int, turns: int, max_length: int, scale: float,
        device: str = "cuda",
    ) -> None:  # fmt: skip
        assert rank & (rank - 1) == 0, "a latent's width is a power of two"
        assert turns & (turns - 1) == 0, "a rotary key's width is a power of two"
        self._shape = heads, rank, turns
        self._max_length, self._scale, self._tokens = max_length, scale, tokens
        self.piece = piece_size(max_length, tokens, heads)
        self.pieces = -(-max_length // self.piece)
        each = (tokens, heads, self.pieces)
        self.mixed = torch.zeros(*each, rank, dtype=torch.float32, device=device)
        self.tops = torch.zeros(each, dtype=torch.float32, device=device)
        self.sums = torch.zeros(each, dtype=torch.float32, device=device)
        self.out = torch.zeros(tokens, heads, rank, dtype=torch.bfloat16, device=device)

    def launch(
        self, queries: torch.Tensor, turned: torch.Tensor, latents: torch.Tensor,
        keys: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        """queries [tokens, heads, rank] and their rotary parts [tokens, heads, turns]; latents
        [slots, max length, rank], rotary keys [slots, max length, turns]; positions of the newest
        tokens, which are in the cache already. Returns mixed latents [tokens, heads, rank]."""
        heads, rank, _ = self._shape
        self.launch_pieces(queries, turned, latents, keys, slots, positions)
        join_pieces(
            self.mixed, self.tops, self.sums, positions, self.out.view(self._tokens, -1),
            heads, rank, self.piece,
        )  # fmt: skip
        return self.out

    def launch_pieces(
        self, queries: torch.Tensor, turned: torch.Tensor, latents: torch.Tensor,
        keys: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor,
    ) -> None:  # fmt: skip
        """The same without joining: `mixed`, `tops` and `sums` of every piece."""
        heads, rank, turns = self._shape
        grid = (self.pieces, -(-heads // _HEADS), self._tokens)
        _attend_latents[grid](
            queries, turned, latents, keys, slots, positions, self.mixed, self.tops, self.sums,
            self._max_length, self._scale, self.pieces,
            HEADS=heads, RANK=rank, TURNS=turns, GROUP=_HEADS, PIECE=self.piece, BLOCK=_BLOCK,
            DOT=tl.bfloat16 if queries.is_cuda else tl.float32, num_warps=8,
            **early_launch(queries),
        )  # fmt: skip
