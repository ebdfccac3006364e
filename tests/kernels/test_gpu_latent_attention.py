"""Does latent attention over a static cache see each sequence's own latents, and no others?"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from moesaic.kernels.gpu.attention import PIECE
from moesaic.kernels.gpu.latent_attention import LatentDecodeAttention, piece_size

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("heads", [3, 20])
def test_tokens_attend_to_their_own_sequence(heads: int) -> None:
    torch.manual_seed(heads)
    rank, turns, slots, longest, scale = 32, 16, 4, 2 * PIECE + 40, 0.2
    latents = torch.randn(slots, longest, rank).to(torch.bfloat16)
    keys = torch.randn(slots, longest, turns).to(torch.bfloat16)
    queries = torch.randn(3, heads, rank).to(torch.bfloat16)
    turned = torch.randn(3, heads, turns).to(torch.bfloat16)
    where, positions = torch.tensor([2, 0, 3]), torch.tensor([0, PIECE - 1, 2 * PIECE + 17])
    attention = LatentDecodeAttention(3, heads, rank, turns, longest, scale, DEVICE)
    given = (p.to(DEVICE) for p in (queries, turned, latents, keys, where, positions))
    result = attention.launch(*given).cpu().double()
    for token in range(3):
        slot, length = int(where[token]), int(positions[token]) + 1
        latent, key = latents[slot, :length].double(), keys[slot, :length].double()
        scores = queries[token].double() @ latent.T + turned[token].double() @ key.T
        want = (scores * scale).softmax(dim=-1) @ latent
        error = (result[token] - want).norm() / want.norm()
        assert error < 0.01, token


@pytest.mark.filterwarnings("ignore:invalid value")  # of the interpreter's numpy
def test_a_score_that_is_no_number_is_seen_in_the_first_token_already() -> None:
    latents, keys = (torch.zeros(1, PIECE, width, dtype=torch.bfloat16) for width in (32, 16))
    queries, turned = (torch.ones(1, 3, width, dtype=torch.bfloat16) for width in (32, 16))
    turned[0, 1] = float("inf")
    latents[0, 0], keys[0, 0] = 1.0, -1.0
    where = torch.zeros(1, dtype=torch.int64)
    attention = LatentDecodeAttention(1, 3, 32, 16, PIECE, 0.2, DEVICE)
    given = (p.to(DEVICE) for p in (queries, turned, latents, keys, where, where))
    result = attention.launch(*given).cpu()[0]
    assert result[1].isnan().all()
    assert torch.equal(result[::2], torch.ones_like(result[::2]))


def test_long_sequences_are_cut_into_longer_pieces() -> None:
    """Every piece of every head has a result in memory: 64 of them are enough."""
    some = {"tokens": 2, "heads": 16}
    assert piece_size(256, **some) == piece_size(64 * PIECE, **some) == PIECE
    assert piece_size(64 * PIECE + 1, **some) == 2 * PIECE
    assert piece_size(163_840, **some) == piece_size(163_840, tokens=1, heads=16) == 4096
    assert piece_size(4096, tokens=1, heads=16) == 64, "a single token's are shorter"
    assert piece_size(8192, tokens=1, heads=16) == 128, "but no more than 64"
    assert piece_size(4096, tokens=1, heads=128) == PIECE, "where many heads fill the GPU, too"
