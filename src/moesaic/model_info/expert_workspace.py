"""How much memory the native kernels need in addition to an expert's block, for memory plans. The
same sums as native/layer/buffer_sizes.h, which a test compares.
"""

from __future__ import annotations

from typing import NamedTuple

from moesaic.model_info.expert_block import FORMATS, STRIP, TILES, aligned

_WAVE_ROWS, _CHUNK_TOKENS = 8192, 256
_MAX_STRIPS, _SCRATCH = 32, 32 * 1024
_FEW_ROWS, _PARTIAL_SUMS = 1024, 128 << 20
_ROW_BYTES = 64  # one token's share of a tile
_ATTENTION_TILES, _KEY_BLOCK, _MAX_HEAD = 16, 64, 256


class Heads(NamedTuple):
    """Attention heads: how many of queries and of keys, and the widths of these and of values."""

    queries: int
    keys: int
    width: int
    values: int


def native_workspace(
    dtype: str, hidden: int, intermediate: int, tokens: int, top_k: int, threads: int
) -> int:
    """The workspace of a layer with so many tokens, at most."""
    row = _panel_row(dtype, intermediate)
    if dtype in FORMATS:  # what becomes codes is kept in fp32 until then
        row += _up(intermediate, STRIP) * STRIP * 4
    result = _up(hidden, STRIP) * STRIP * 4  # of a token
    strips = min(_MAX_STRIPS, max(2 * _up(intermediate, STRIP), _up(hidden, STRIP)))

    def in_rows(rows: int, chunk: int) -> int:
        tokens_at_once = max(min(rows, chunk), 1)
        inputs = tokens_at_once * _panel_row(dtype, hidden)
        own = aligned(strips * tokens_at_once * STRIP * 4) + inputs + _SCRATCH
        return rows * row + threads * own

    pairs = tokens * top_k
    # What each row adds to the result waits until it can be added.
    few = min(pairs, max(_FEW_ROWS, _PARTIAL_SUMS // result))
    needed = tokens * result + max(
        in_rows(min(pairs, _WAVE_ROWS + _CHUNK_TOKENS), _CHUNK_TOKENS),
        in_rows(few, _CHUNK_TOKENS) + few * result,
    )
    return needed + needed // 4 + 32 * 64


def linear_workspace(inputs: int, tokens: int, workers: int) -> int:
    """The workspace of a product of so many tokens with one packed matrix, in any precision, at
    most: the tokens ready to be multiplied, and every worker's sums (native/linear/linear.cpp)."""
    panel = _up(tokens, STRIP) * STRIP * _up(inputs, 32) * (_ROW_BYTES + 8)
    sums = _MAX_STRIPS * min(tokens, _CHUNK_TOKENS) * STRIP * 4 + _SCRATCH
    needed = panel + workers * sums
    return needed + needed // 4 + 32 * 64


def attention_workspace(heads: Heads, tokens: int, workers: int) -> int:
    """The workspace of a prompt's attention with so many new tokens of a sequence, at most: every
    worker's rows, block of keys and values, and scores (native/rows/attention_job.cpp)."""
    if any(each % 32 or not 0 < each <= _MAX_HEAD for each in (heads.width, heads.values)):
        return 0  # PyTorch's
    group = heads.queries // heads.keys
    at_once = _up(group, _up(group, _ATTENTION_TILES))
    tiles = min(max(_ATTENTION_TILES // at_once, 1), _up(tokens, STRIP)) * at_once
    rows = tiles * STRIP * (2 * heads.width + 4 * heads.values + 8)
    scores = _KEY_BLOCK * (6 * _KEY_BLOCK + 4 * heads.values + 12)
    block = 2 * _KEY_BLOCK * (heads.width + heads.values)
    needed = workers * (rows + scores + block + _SCRATCH) + 64
    return aligned(needed + needed // 4)


def _panel_row(dtype: str, inputs: int) -> int:
    """A token ready to be multiplied: its share of every tile, and its scales and sums."""
    form = FORMATS.get(dtype)
    scales = aligned(form.groups(inputs) * 4 if form else 0)
    return _up(inputs, TILES[dtype].inputs) * _ROW_BYTES + 2 * scales


def _up(value: int, by: int) -> int:
    return -(-value // by)
