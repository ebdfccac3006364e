"""Does attention over a static cache see each sequence's own tokens, and no others?"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

pytest.importorskip("triton")

from moesaic.kernels.gpu.attention import PIECE, DecodeAttention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2)])
def test_tokens_attend_to_their_own_sequence(heads: int, kv_heads: int) -> None:
    torch.manual_seed(heads)
    width, slots, longest = 32, 4, 2 * PIECE + 40
    keys, values = (
        torch.randn(slots, longest, kv_heads, width).to(torch.bfloat16) for _ in range(2)
    )
    queries = torch.randn(3, heads, width).to(torch.bfloat16)
    where, positions = torch.tensor([2, 0, 3]), torch.tensor([0, PIECE - 1, 2 * PIECE + 17])
    attention = DecodeAttention(3, heads, kv_heads, width, longest, width**-0.5, DEVICE)
    given = [part.to(DEVICE) for part in (queries, keys, values, where, positions)]
    attention.launch(*given)  # a second time with what the first has left
    result = attention.launch(*given).cpu().float()
    for token in range(3):
        slot, length = int(where[token]), int(positions[token]) + 1
        key, value = (part[slot, :length].double().transpose(0, 1) for part in (keys, values))
        query = queries[token].double()[:, None]
        want = functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
        error = (result[token] - want.flatten()).norm() / want.norm()
        assert error < 0.01, token
