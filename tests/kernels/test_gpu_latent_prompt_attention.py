"""Do tokens of prompts see the latents in front of them in their own sequence, and no others?"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from moesaic.kernels.gpu.latent_prompt_attention import LatentPromptAttention
from moesaic.kernels.gpu.prompt_attention import ROWS, most_tiles, tiles_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SEGMENTS = [(2, 0, ROWS + 6), (0, 50, 3), (3, 90, 1)]  # slot, position, tokens


@pytest.mark.parametrize("heads", [3, 8])
def test_tokens_attend_to_what_is_in_front_of_them(heads: int) -> None:
    """Three heads: a program's pairs begin and end in the middle of a row."""
    torch.manual_seed(heads)
    rank, turns, slots, longest, tokens, scale = 32, 16, 4, 128, 80, 0.2
    latents = torch.randn(slots, longest, rank).to(torch.bfloat16)
    keys = torch.randn(slots, longest, turns).to(torch.bfloat16)
    for slot, position, count in SEGMENTS:  # what another sequence has left behind
        latents[slot, position + count :] = float("nan")
    queries = torch.randn(heads, tokens, rank).to(torch.bfloat16)
    turned = torch.randn(tokens, heads, turns).to(torch.bfloat16)
    tiles = torch.zeros(most_tiles(tokens, slots), 4, dtype=torch.int64)
    found = tiles_of(SEGMENTS)
    tiles[: len(found)] = torch.tensor(found)
    attention = LatentPromptAttention(heads, rank, turns, longest, scale)
    given = (part.to(DEVICE) for part in (queries, turned, latents, keys, tiles))
    result = attention.launch(*given).cpu().double()
    row = 0
    for slot, position, count in SEGMENTS:
        for number in range(count):
            length, at = position + number + 1, row + number
            latent, key = latents[slot, :length].double(), keys[slot, :length].double()
            scores = queries[:, at].double() @ latent.T + turned[at].double() @ key.T
            want = (scores * scale).softmax(dim=-1) @ latent
            error = (result[:, at] - want).norm(dim=-1) / want.norm(dim=-1)
            assert error.max() < 0.01, (slot, number)
        row += count


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_blocking_that_fits_says_the_same(number: int) -> None:
    """At DeepSeek's widths, over more positions than a block has."""
    from triton.runtime.errors import OutOfResources

    from moesaic.kernels.gpu.latent_prompt_attention import BLOCKINGS

    torch.manual_seed(number)
    heads, rank, turns, longest, tokens, position = 20, 512, 64, 1024, 150, 700
    latents = torch.randn(2, longest, rank, device="cuda").to(torch.bfloat16)
    keys = torch.randn(2, longest, turns, device="cuda").to(torch.bfloat16)
    queries = torch.randn(heads, tokens, rank, device="cuda").to(torch.bfloat16)
    turned = torch.randn(tokens, heads, turns, device="cuda").to(torch.bfloat16)
    tiles = torch.tensor(tiles_of([(1, position, tokens)]), device="cuda")
    attention = LatentPromptAttention(heads, rank, turns, longest, 0.04)
    attention._blockings = [BLOCKINGS[number]]
    try:
        result = attention.launch(queries, turned, latents, keys, tiles).float()
    except OutOfResources:
        pytest.skip("more shared memory than this GPU has")
    scores = queries.float() @ latents[1].float().T
    scores += turned.float().transpose(0, 1) @ keys[1].float().T
    at = torch.arange(longest, device="cuda")
    unseen = at[None] > position + torch.arange(tokens, device="cuda")[:, None]
    shares = (scores * 0.04).masked_fill_(unseen, float("-inf")).softmax(dim=-1)
    want = shares @ latents[1].float()
    error = (result - want).norm(dim=-1) / want.norm(dim=-1)
    assert error.max() < 0.01
