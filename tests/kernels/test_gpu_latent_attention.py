"""Does latent attention over a static cache see each sequence's own latents, and no others?"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from scattered_cache import Scattered

from moesaic.kernels.gpu.attention import PIECE
from moesaic.kernels.gpu.latent_attention import LatentDecodeAttention, piece_size
from moesaic.kernels.gpu.latent_prompt_attention import LatentPromptAttention
from moesaic.kernels.gpu.prompt_attention import ROWS, most_tiles, tiles_of
from moesaic.model_info.kv_blocks import blocks_of

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
    attention = LatentDecodeAttention(3, heads, rank, turns, blocks_of(longest), scale, DEVICE)
    (rows, table), (key_rows, _) = Scattered.of(latents), Scattered.of(keys)
    parts = (queries, turned, rows, key_rows, table, where, positions)
    given = (part.to(DEVICE) for part in parts)
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
    attention = LatentDecodeAttention(1, 3, 32, 16, blocks_of(PIECE), 0.2, DEVICE)
    (rows, table), (key_rows, _) = Scattered.of(latents), Scattered.of(keys)
    parts = (queries, turned, rows, key_rows, table, where, where)
    given = (part.to(DEVICE) for part in parts)
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


# Do tokens of prompts see the latents in front of them in their own sequence, and no others?

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
    attention = LatentPromptAttention(heads, rank, turns, blocks_of(longest), scale)
    (rows_of, table), (key_rows, _) = Scattered.of(latents), Scattered.of(keys)
    given = (part.to(DEVICE) for part in (queries, turned, rows_of, key_rows, table, tiles))
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
    attention = LatentPromptAttention(heads, rank, turns, blocks_of(longest), 0.04)
    (rows, table), (key_rows, _) = Scattered.of(latents.cpu()), Scattered.of(keys.cpu())
    cache = (rows.to("cuda"), key_rows.to("cuda"), table.to("cuda"))
    attention._blockings = [BLOCKINGS[number]]
    try:
        result = attention.launch(queries, turned, *cache, tiles).float()
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
