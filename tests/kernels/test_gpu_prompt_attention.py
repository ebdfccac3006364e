"""Do tokens of prompts see what is in front of them in their own sequence, and nothing else?"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

pytest.importorskip("triton")

from moesaic.kernels.gpu.prompt_attention import ROWS, PromptAttention, most_tiles, tiles_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SEGMENTS = [(2, 0, ROWS + 6), (0, 50, 3), (3, 90, 1)]  # slot, position, tokens


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 1)])
def test_tokens_attend_to_what_is_in_front_of_them(heads: int, kv_heads: int) -> None:
    torch.manual_seed(heads)
    width, slots, longest, tokens = 16, 4, 128, 80
    keys, values = (
        torch.randn(slots, longest, kv_heads, width).to(torch.bfloat16) for _ in range(2)
    )
    queries = torch.randn(tokens, heads, width).to(torch.bfloat16)
    attention = PromptAttention(tokens, heads, kv_heads, width, longest, width**-0.5, DEVICE)
    tiles = torch.zeros(most_tiles(tokens, slots), 4, dtype=torch.int64)
    found = tiles_of(SEGMENTS)
    tiles[: len(found)] = torch.tensor(found)
    given = (part.to(DEVICE) for part in (queries, keys, values, tiles))
    result = attention.launch(*given).cpu().double().view(tokens, heads, width)
    row = 0
    for slot, position, count in SEGMENTS:
        key, value = (
            part[slot, : position + count].double().transpose(0, 1) for part in (keys, values)
        )
        seen = torch.arange(position + count)[None] <= position + torch.arange(count)[:, None]
        want = functional.scaled_dot_product_attention(
            queries[row : row + count].double().transpose(0, 1), key, value, seen, enable_gqa=True
        ).transpose(0, 1)
        got = result[row : row + count]
        errors = (got - want).flatten(1).norm(dim=1) / want.flatten(1).norm(dim=1)
        assert errors.max() < 0.01, (slot, int(errors.argmax()))
        row += count
    assert not result[row:].any(), "rows without a sequence are left alone"


def test_every_row_has_one_tile() -> None:
    segments = [(0, 5, 1), (1, 0, 3 * ROWS), (2, 7, ROWS + 1)]
    tiles = tiles_of(segments)
    rows = [row for tile in tiles for row in range(tile.row, tile.row + tile.rows)]
    assert rows == list(range(sum(tokens for _, _, tokens in segments)))
    assert all(0 < tile.rows <= ROWS for tile in tiles)
    assert len(tiles) <= most_tiles(len(rows), len(segments))
