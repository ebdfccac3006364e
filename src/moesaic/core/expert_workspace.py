"""How much memory the native kernels need beside an expert's block, for plans made in advance. The
same sums as native/src/layer_memory.h, which a test compares.
"""

from __future__ import annotations

from moesaic.core.expert_block import FORMATS, STRIP, TILES, aligned

_WAVE_ROWS, _CHUNK_TOKENS = 8192, 256
_MOST_STRIPS, _SCRATCH = 32, 32 * 1024
_FEW_ROWS = 256
_ROW_BYTES = 64  # one token's share of a tile


def native_workspace(
    dtype: str, hidden: int, intermediate: int, tokens: int, top_k: int, threads: int
) -> int:
    """Of a layer with so many tokens, at most."""
    rows = min(tokens * top_k, _WAVE_ROWS + _CHUNK_TOKENS)
    per_row = _panel_row(dtype, intermediate)
    if dtype in FORMATS:  # what becomes codes is kept in fp32 until then
        per_row += _up(intermediate, STRIP) * STRIP * 4
    sums = tokens * _up(hidden, STRIP) * STRIP * 4
    strips = min(_MOST_STRIPS, max(2 * _up(intermediate, STRIP), _up(hidden, STRIP)))
    chunk = min(_CHUNK_TOKENS, max(tokens * top_k, 1))
    own = aligned(strips * chunk * STRIP * 4) + chunk * _panel_row(dtype, hidden) + _SCRATCH
    of_a_row = _up(hidden, STRIP) * STRIP * 4  # of few rows: what each adds to the result
    in_rows = max(rows * per_row, min(rows, _FEW_ROWS) * (per_row + of_a_row))
    needed = in_rows + sums + threads * own
    return needed + needed // 4 + 32 * 64


def _panel_row(dtype: str, inputs: int) -> int:
    """A token ready to be multiplied: its share of every tile, and its scales and sums."""
    form = FORMATS.get(dtype)
    scales = aligned(form.groups(inputs) * 4 if form else 0)
    return _up(inputs, TILES[dtype].inputs) * _ROW_BYTES + 2 * scales


def _up(value: int, by: int) -> int:
    return -(-value // by)
