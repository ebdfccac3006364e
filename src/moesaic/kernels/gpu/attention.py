"""Attention of one new token per sequence over a static KV cache, in Triton.

The cache is cut into pieces of PIECE positions, each a program that keeps its own maximum and sum.
The program that ends last joins them; a sequence of one piece needs no joining. Pieces beyond a
sequence's length end at once, so one captured launch serves every length. Where a piece is long
(latent attention), a second kernel joins."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from moesaic.kernels.gpu.driver import launches_early

PIECE = 256
_BLOCK = 64


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
def _attend_piece(
    queries, keys, values, slots, positions, mixed, tops, sums, ended, out, max_length, scale,
    pieces,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr,
    PIECE: tl.constexpr, BLOCK: tl.constexpr, DOT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One token, one KV head, one piece: all its GROUP query heads (padded to 16)."""
    piece, kv_head, token = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(positions + token) + 1  # as the slot, there before anything of the layer
    base = tl.load(slots + token) * max_length
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if piece * PIECE >= length:
        return
    head, column = tl.arange(0, 16), tl.arange(0, WIDTH)
    real = head < GROUP
    number = kv_head * GROUP + head
    at = (token * HEADS + number)[:, None] * WIDTH + column[None, :]
    query = tl.load(queries + at, mask=real[:, None], other=0)
    top = tl.full((16,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((16,), dtype=tl.float32)
    result = tl.zeros((16, WIDTH), dtype=tl.float32)
    for start in tl.static_range(0, PIECE, BLOCK):
        if piece * PIECE + start < length:
            row = piece * PIECE + start + tl.arange(0, BLOCK)
            there = row < length
            cached = ((base + row) * KV_HEADS + kv_head)[:, None] * WIDTH + column[None, :]
            key = tl.load(keys + cached, mask=there[:, None], other=0)
            score = tl.dot(query.to(DOT), tl.trans(key).to(DOT)) * scale
            score = tl.where(there[None, :], score, float("-inf"))
            higher = tl.maximum(top, tl.max(score, axis=1))
            higher = tl.where(higher == float("-inf"), 0.0, higher)
            weight = tl.exp(score - higher[:, None])
            shrink = tl.exp(top - higher)
            value = tl.load(values + cached, mask=there[:, None], other=0)
            part = tl.dot(weight.to(tl.bfloat16).to(DOT), value.to(DOT))
            result = result * shrink[:, None] + part
            total = total * shrink + tl.sum(weight, axis=1)
            top = higher
    to = out + (token * HEADS + number)[:, None] * WIDTH + column[None, :]
    used = (length - 1) // PIECE + 1
    if used == 1:
        tl.store(to, (result / total[:, None]).to(tl.bfloat16), mask=real[:, None])
    else:
        place = (token * HEADS + number).to(tl.int64) * pieces
        tl.store(tops + place + piece, top, mask=real)
        tl.store(sums + place + piece, total, mask=real)
        part_at = (place + piece)[:, None] * WIDTH + column[None, :]
        tl.store(mixed + part_at, result, mask=real[:, None])
        tl.debug_barrier()  # all of this program's parts are written
        counter = ended + token * KV_HEADS + kv_head
        if tl.atomic_add(counter, 1, sem="acq_rel") == used - 1:
            tl.store(counter, 0)
            joined = _joined(mixed, tops, sums, place, real, used, WIDTH)
            tl.store(to, joined, mask=real[:, None])


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


class DecodeAttention:
    """Grouped-query attention of up to so many tokens; buffers stay where they are."""

    def __init__(
        self, tokens: int, heads: int, kv_heads: int, width: int, max_length: int, scale: float,
        device: str = "cuda",
    ) -> None:  # fmt: skip
        assert heads % kv_heads == 0, "every KV head serves as many query heads"
        assert heads // kv_heads <= 16, "at most 16 query heads share a KV head"
        assert width & (width - 1) == 0, "a head's width is a power of two"
        self._shape = heads, kv_heads, width
        self._max_length, self._scale, self._tokens = max_length, scale, tokens
        self._pieces = -(-max_length // PIECE)
        each = (tokens, heads, self._pieces)
        self._mixed = torch.zeros(*each, width, dtype=torch.float32, device=device)
        self._tops = torch.zeros(each, dtype=torch.float32, device=device)
        self._sums = torch.zeros(each, dtype=torch.float32, device=device)
        self._ended = torch.zeros(tokens, kv_heads, dtype=torch.int32, device=device)
        self.out = torch.zeros(tokens, heads * width, dtype=torch.bfloat16, device=device)

    def launch(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor,
        slots: torch.Tensor, positions: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        """queries [tokens, heads, width], keys and values [slots, max length, kv heads, width];
        positions of the newest tokens, whose keys are in the cache already."""
        heads, kv_heads, width = self._shape
        grid = (self._pieces, kv_heads, self._tokens)
        _attend_piece[grid](
            queries, keys, values, slots, positions, self._mixed, self._tops, self._sums,
            self._ended, self.out, self._max_length, self._scale, self._pieces,
            HEADS=heads, KV_HEADS=kv_heads, WIDTH=width, GROUP=heads // kv_heads,
            PIECE=PIECE, BLOCK=_BLOCK,
            DOT=tl.bfloat16 if queries.is_cuda else tl.float32, **early_launch(queries),
        )  # fmt: skip
        return self.out
