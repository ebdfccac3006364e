"""How much memory the native kernels need beside an expert's block, for plans made in advance. The
same sums as native/src/layer_memory.h, which a test compares.
"""

from __future__ import annotations

from moesaic.core.expert_block import FORMATS, STRIP, TILES, aligned

_WAVE_ROWS, _CHUNK_TOKENS = 8192, 256
_BLOCK_TILES, _MOST_STRIPS, _CLOSE_STRIPS = 64, 32, 8
_ROW_BYTES = 64  # one token's share of a tile


def native_workspace(
    dtype: str, hidden: int, intermediate: int, tokens: int, top_k: int, threads: int
) -> int:
    """Of a layer with so many tokens, at most."""
    rows = min(tokens * top_k, _WAVE_ROWS + _CHUNK_TOKENS)
    tile = TILES[dtype].inputs
    per_row = (_up(hidden, tile) + _up(intermediate, tile)) * _ROW_BYTES
    per_row += _up(intermediate, STRIP) * STRIP * 4
    form = FORMATS.get(dtype)
    for inputs in (hidden, intermediate):
        per_row += 2 * aligned(form.groups(inputs) * 4 if form else 0)
    sums = tokens * _up(hidden, STRIP) * STRIP * 4
    needed = rows * per_row + sums + threads * _per_worker(_up(max(hidden, intermediate), tile))
    return needed + needed // 4 + 32 * 64


def _per_worker(tiles: int) -> int:
    """Where inputs are many tiles, more strips share them."""
    strips = _MOST_STRIPS if tiles > _BLOCK_TILES else _CLOSE_STRIPS
    return aligned(strips * _CHUNK_TOKENS * STRIP * 4) + 64 * 1024


def _up(value: int, by: int) -> int:
    return -(-value // by)
