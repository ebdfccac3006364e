"""Attention of one new token per sequence over a KV cache in blocks, in Triton: from its
projections to what its heads have mixed.

Queries and the new key are normalised and turned where they are used; the program that has the
token's own position writes its key and value into the cache. Rounding follows the PyTorch modules
in models/. What was in the cache before is read while the projections end.

The cache is cut into pieces of PIECE positions, each a program that keeps its own maximum and sum.
The program that ends last joins them; a sequence of one piece needs no joining. Pieces beyond a
sequence's length end at once, so one captured launch serves every length. Where a piece is long
(latent attention), a second kernel joins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from moesaic.kernels.gpu.cached_rows import row_of, rows_from
from moesaic.kernels.gpu.driver import launches_early
from moesaic.model_info.kv_blocks import KV_BLOCK

PIECE = 256
_BLOCK = KV_BLOCK


@triton.jit
def _joined(mixed, tops, sums, place, real, used, WIDTH: tl.constexpr):
    """The first `used` pieces at `place` [16], of `real` heads."""
    column = tl.arange(0, WIDTH)
    top = tl.full((16,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((16,), dtype=tl.float32)
    result = tl.zeros((16, WIDTH), dtype=tl.float32)
    piece = 0
    while piece < used:
        other = tl.load(tops + place + piece, mask=real, other=0.0)
        higher = tl.maximum(top, other)
        shrink, weight = tl.exp(top - higher), tl.exp(other - higher)
        at = (place + piece)[:, None] * WIDTH + column[None, :]
        part = tl.load(mixed + at, mask=real[:, None], other=0.0)
        result = result * shrink[:, None] + part * weight[:, None]
        total = total * shrink + tl.load(sums + place + piece, mask=real, other=1.0) * weight
        top = higher
        piece += 1
    return (result / total[:, None]).to(tl.bfloat16)


@triton.jit
def _rounded(values):
    return values.to(tl.bfloat16).to(tl.float32)


@triton.jit
def _partners(column, TURNS: tl.constexpr):
    """Of every value the one that it is turned with; values that are not turned are their own."""
    HALF: tl.constexpr = TURNS // 2
    RUN: tl.constexpr = 8 if HALF % 8 == 0 else 1  # so many have neighbours for partners
    partner = tl.where(column < HALF, column + HALF, column)
    partner = tl.where((column >= HALF) & (column < TURNS), column - HALF, partner)
    return tl.max_contiguous(tl.multiple_of(partner, RUN), RUN)


@triton.jit
def _turn_of(turn, norm, column, partner, TURNS: tl.constexpr):
    """What does not depend on projections: weights of values and of their partners, where there is
    a norm, cosines, and sines as partners are multiplied by them. `turn`: of a position."""
    HALF: tl.constexpr = TURNS // 2
    pair, turning = tl.where(column < HALF, column, partner), column < TURNS
    cos = _rounded(tl.load(turn + pair, mask=turning, other=1.0))
    sin = _rounded(tl.load(turn + HALF + pair, mask=turning, other=0.0))
    weight, partners = cos, cos
    if norm is not None:
        weight = tl.load(norm + column).to(tl.float32)
        partners = tl.load(norm + partner).to(tl.float32)
    return weight, partners, cos, tl.where(column < HALF, -sin, sin)


@triton.jit
def _turned(own, other, weight, partners, cos, sin, NORMED: tl.constexpr, EPS: tl.constexpr):
    """Rows of values and their partners, normalised where the model does, and turned."""
    own, other = own.to(tl.float32), other.to(tl.float32)
    if NORMED:
        scale = tl.rsqrt(tl.sum(own * own, axis=1) / own.shape[1] + EPS)[:, None]
        own = _rounded(weight * _rounded(own * scale))
        other = _rounded(partners * _rounded(other * scale))
    return (_rounded(own * cos) + _rounded(other * sin)).to(tl.bfloat16)


@triton.jit
def with_block(score, value, there, top, total, result, DOT: tl.constexpr):
    """A piece's maximum, sum and result with a block more, of which something is there."""
    score = tl.where(there[None, :], score, float("-inf"))
    higher = tl.maximum(top, tl.max(score, axis=1))
    weight = tl.exp(score - higher[:, None])
    shrink = tl.exp(top - higher)
    part = tl.dot(weight.to(tl.bfloat16).to(DOT), value.to(DOT))
    return higher, total * shrink + tl.sum(weight, axis=1), result * shrink[:, None] + part


@triton.jit
def _leave(
    mixed, tops, sums, counter, place, real, to, piece, used, top, total, result,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """What a piece has found: the result, if it is the only one; else the last one joins."""
    if used == 1:
        tl.store(to, (result / total[:, None]).to(tl.bfloat16), mask=real[:, None])
    else:
        tl.store(tops + place + piece, top, mask=real)
        tl.store(sums + place + piece, total, mask=real)
        at = (place + piece)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
        tl.store(mixed + at, result, mask=real[:, None])
        tl.debug_barrier()  # all of this program's parts are written
        if tl.atomic_add(counter, 1, sem="acq_rel") == used - 1:
            tl.store(counter, 0)
            joined = _joined(mixed, tops, sums, place, real, used, WIDTH)
            tl.store(to, joined, mask=real[:, None])


@triton.jit
def _attend_piece(
    qkv, query_norm, key_norm, turns, keys, values, table, slots, positions, active,
    mixed, tops, sums, ended, out, of_slot, scale, pieces,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr,
    TURNS: tl.constexpr, EPS: tl.constexpr, PIECE: tl.constexpr, BLOCK: tl.constexpr,
    DOT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One token, one KV head, one piece: all its GROUP query heads (padded to 16)."""
    piece, kv_head, token = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    position = tl.load(positions + token)  # as the slot, there before anything of the layer
    blocks = table + tl.load(slots + token) * of_slot
    head, one = tl.arange(0, 16), tl.arange(0, 1)
    real, holds = head < GROUP, piece == position // PIECE
    stores = holds & (token < tl.load(active))
    column, partner = tl.arange(0, WIDTH)[None, :], _partners(tl.arange(0, WIDTH), TURNS)[None, :]
    columns, partners = tl.broadcast_to(column, 16, WIDTH), tl.broadcast_to(partner, 16, WIDTH)
    turn = turns + position * TURNS
    turn_query = _turn_of(turn, query_norm, columns, partners, TURNS)
    turn_key = _turn_of(turn, key_norm, column, partner, TURNS)
    first = piece * PIECE + tl.arange(0, BLOCK)
    cached = (rows_from(blocks, piece * PIECE, BLOCK) * KV_HEADS + kv_head)[:, None] * WIDTH
    cached += column
    first_key = tl.load(keys + cached, mask=(first < position)[:, None], other=0)
    first_value = tl.load(values + cached, mask=(first < position)[:, None], other=0)
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if piece * PIECE > position:
        return
    projected = qkv + token * (HEADS + 2 * KV_HEADS) * WIDTH
    number, of_key = kv_head * GROUP + head, projected + (HEADS + kv_head) * WIDTH
    of_query = projected + number[:, None] * WIDTH
    query = tl.load(of_query + columns, mask=real[:, None], other=0)
    across = tl.load(of_query + partners, mask=real[:, None], other=0)
    new_key, key_across = tl.load(of_key + column), tl.load(of_key + partner)
    new_value = tl.load(of_key + KV_HEADS * WIDTH + column)
    query = _turned(query, across, *turn_query, query_norm is not None, EPS)
    new_key = _turned(new_key, key_across, *turn_key, key_norm is not None, EPS)
    own = ((row_of(blocks, position) + one) * KV_HEADS + kv_head)[:, None] * WIDTH + column
    tl.store(keys + own, new_key, mask=stores)
    tl.store(values + own, new_value, mask=stores)
    # The piece that holds the new token begins with it.
    score = tl.sum(query.to(tl.float32) * new_key.to(tl.float32), axis=1) * scale
    weight = tl.exp(score - score)  # 1, or no number where the score is none
    top = tl.where(holds, score, float("-inf"))
    total = tl.where(holds, weight, 0.0)
    result = tl.where(holds, weight[:, None] * new_value.to(tl.float32), 0.0)
    for start in tl.static_range(0, PIECE, BLOCK):
        if piece * PIECE + start < position:
            row = first + start
            key, value = first_key, first_value
            if start > 0:
                there = rows_from(blocks, piece * PIECE + start, BLOCK)
                at = (there * KV_HEADS + kv_head)[:, None] * WIDTH + column
                key = tl.load(keys + at, mask=(row < position)[:, None], other=0)
                value = tl.load(values + at, mask=(row < position)[:, None], other=0)
            scores = tl.dot(query.to(DOT), tl.trans(key).to(DOT)) * scale
            top, total, result = with_block(scores, value, row < position, top, total, result, DOT)
    line = token * HEADS + number
    _leave(
        mixed, tops, sums, ended + token * KV_HEADS + kv_head, line.to(tl.int64) * pieces, real,
        out + line[:, None] * WIDTH + column, piece, position // PIECE + 1, top, total, result,
        WIDTH,
    )  # fmt: skip


@triton.jit
def _join(
    mixed, tops, sums, positions, out, pieces,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, PIECE: tl.constexpr, PIECES: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    head, token = tl.program_id(0), tl.program_id(1)
    used = tl.load(positions + token) // PIECE + 1
    piece, column = tl.arange(0, PIECES), tl.arange(0, WIDTH)
    place = ((token * HEADS + head) * pieces + piece).to(tl.int64)
    there = piece < used
    top = tl.load(tops + place, mask=there, other=float("-inf"))
    weight = tl.exp(top - tl.max(top, axis=0))
    total = tl.sum(weight * tl.load(sums + place, mask=there, other=0), axis=0)
    parts = tl.load(mixed + place[:, None] * WIDTH + column[None, :], mask=there[:, None], other=0)
    result = tl.sum(parts * weight[:, None], axis=0) / total
    tl.store(out + (token * HEADS + head) * WIDTH + column, result.to(tl.bfloat16))


def early_launch(queries: torch.Tensor) -> dict[str, bool]:
    """On GPUs that can (Hopper and later), kernels are launched before the one in front of them
    has ended, and wait themselves."""
    can = queries.is_cuda and launches_early()
    return {"EARLY": True, "launch_pdl": True} if can else {"EARLY": False}


def join_pieces(
    mixed: torch.Tensor, tops: torch.Tensor, sums: torch.Tensor, positions: torch.Tensor,
    out: torch.Tensor, heads: int, width: int, piece: int = PIECE,
) -> None:  # fmt: skip
    """mixed [tokens, heads, pieces, width] with their maxima and sums, to out [tokens, heads *
    width]; a piece has so many positions."""
    tokens, pieces = mixed.shape[0], mixed.shape[2]
    _join[(heads, tokens)](
        mixed, tops, sums, positions, out, pieces,
        HEADS=heads, WIDTH=width, PIECE=piece, PIECES=triton.next_power_of_2(pieces),
        **early_launch(mixed),
    )  # fmt: skip


class HeadShape(NamedTuple):
    """Of grouped-query attention: `turns` values of every query and key are turned."""

    heads: int
    kv_heads: int
    width: int
    turns: int
    norm_eps: float
    scale: float


class CachedTokens(NamedTuple):
    """A layer's keys and values [blocks, tokens of a block, kv heads, width] and the blocks that
    sequences have; of the new tokens the slots and positions, and how many of them are real: others
    leave the cache as it is."""

    keys: torch.Tensor
    values: torch.Tensor
    table: torch.Tensor  # int32 [slots, blocks of the longest sequence]
    slots: torch.Tensor
    positions: torch.Tensor
    active: torch.Tensor


class DecodeAttention:
    """Grouped-query attention of up to so many tokens; buffers stay where they are. A sequence has
    up to `of_slot` blocks; `turns` [positions, 2, turned values / 2]: cosines and sines."""

    def __init__(
        self, tokens: int, shape: HeadShape, of_slot: int, turns: torch.Tensor,
        device: str = "cuda",
    ) -> None:  # fmt: skip
        heads, kv_heads, width = shape[:3]
        assert heads % kv_heads == 0, "every KV head serves as many query heads"
        assert heads // kv_heads <= 16, "at most 16 query heads share a KV head"
        assert width & (width - 1) == 0, "a head's width is a power of two"
        self._shape, self._turns = shape, turns
        self._of_slot, self._tokens = of_slot, tokens
        self._pieces = -(-of_slot * KV_BLOCK // PIECE)
        each = (tokens, heads, self._pieces)
        self._mixed = torch.zeros(*each, width, dtype=torch.float32, device=device)
        self._tops = torch.zeros(each, dtype=torch.float32, device=device)
        self._sums = torch.zeros(each, dtype=torch.float32, device=device)
        self._ended = torch.zeros(tokens, kv_heads, dtype=torch.int32, device=device)
        self.out = torch.zeros(tokens, heads * width, dtype=torch.bfloat16, device=device)

    def launch(
        self, qkv: torch.Tensor, norms: Sequence[torch.Tensor | None], cached: CachedTokens
    ) -> torch.Tensor:
        """qkv [tokens, heads + 2 kv heads, width]: queries, keys, values as they were projected;
        norms of queries and keys, where they are still to be applied."""
        shape = self._shape
        grid = (self._pieces, shape.kv_heads, self._tokens)
        _attend_piece[grid](
            qkv, *norms, self._turns, *cached, self._mixed, self._tops, self._sums,
            self._ended, self.out, self._of_slot, shape.scale, self._pieces,
            HEADS=shape.heads, KV_HEADS=shape.kv_heads, WIDTH=shape.width,
            GROUP=shape.heads // shape.kv_heads, TURNS=shape.turns, EPS=shape.norm_eps,
            PIECE=PIECE, BLOCK=_BLOCK, DOT=tl.bfloat16 if qkv.is_cuda else tl.float32,
            **early_launch(qkv),
        )  # fmt: skip
        return self.out
