"""Does attention over a static cache see each sequence's own tokens, and no others? Are new keys
and values what the models make of the same projections?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch
from torch.nn import functional

pytest.importorskip("triton")

from scattered_cache import Scattered

from made_up import long
from moesaic.kernels.gpu.attention import PIECE, CachedTokens, DecodeAttention, HeadShape
from moesaic.kernels.gpu.prompt_attention import ROWS, PromptAttention, most_tiles, tiles_of
from moesaic.model_info.kv_blocks import blocks_of
from moesaic.model_info.network import Rope
from moesaic.models.attentions.rope import Rotation, frequencies, rotate, rotation
from moesaic.models.norm import RmsNorm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CLOSE = 0.01 if DEVICE == "cuda" else 0.03  # Triton's interpreter cuts what a GPU rounds to bf16
SLOTS, LONGEST, WIDTH, EPS = 4, 2 * PIECE + 40, 32, 1e-6
WHERE, POSITIONS = torch.tensor([2, 0, 3]), torch.tensor([0, PIECE - 1, 2 * PIECE + 17])


class Case(NamedTuple):
    heads: int
    kv_heads: int
    turns: int
    normed: bool
    still: bool = False  # every angle is 0: queries are what was projected

    @property
    def close(self) -> float:
        return 0.01 if self.still else CLOSE


CASES = [Case(4, 4, 32, False), Case(8, 2, 32, True), Case(8, 2, 16, True)]
STILL = [Case(4, 4, 32, False, still=True), Case(8, 2, 32, False, still=True)]


class Given(NamedTuple):
    """Projections of three tokens, norms of queries and keys, a cache."""

    shape: HeadShape
    qkv: torch.Tensor
    norms: Sequence[torch.Tensor | None]
    keys: torch.Tensor
    values: torch.Tensor
    turned: Rotation  # of every position

    @classmethod
    def of(cls, case: Case) -> Given:
        torch.manual_seed(case.heads + case.turns)
        heads, kv_heads, turns, normed, still = case
        rope = Rope("default", 10_000.0, turns)
        keys, values = (_random(SLOTS, LONGEST, kv_heads, WIDTH) for _ in range(2))
        norms = [_random(WIDTH) if normed else None for _ in range(2)]
        turned = rotation(rope, frequencies(rope) * (not still), torch.arange(LONGEST))
        shape = HeadShape(heads, kv_heads, WIDTH, turns, EPS, WIDTH**-0.5)
        qkv = _random(3, heads + 2 * kv_heads, WIDTH)
        return cls(shape, qkv, norms, keys, values, turned)

    def run(self, active: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What heads mix, keys and values afterwards."""
        turns = torch.cat(self.turned, dim=1).to(DEVICE)
        attention = DecodeAttention(3, self.shape, blocks_of(LONGEST), turns, DEVICE)
        keys, values = Scattered.of(self.keys), Scattered.of(self.values)
        parts = (keys.rows, values.rows, keys.table, WHERE, POSITIONS, torch.tensor([active]))
        cached = CachedTokens(*(part.to(DEVICE, copy=True) for part in parts))
        norms = [None if norm is None else norm.to(DEVICE) for norm in self.norms]
        attention.launch(self.qkv.to(DEVICE), norms, cached)  # again with what this has left
        result = attention.launch(self.qkv.to(DEVICE), norms, cached)
        after = (Scattered(part.cpu(), keys.table) for part in (cached.keys, cached.values))
        return (result.cpu(), *(part.sequences(LONGEST) for part in after))

    def expected(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values of the tokens, as the models have them."""
        heads, kv_heads = self.shape.heads, self.shape.kv_heads
        query, key, value = self.qkv.split([heads, kv_heads, kv_heads], dim=1)
        turn = Rotation(*(part[POSITIONS] for part in self.turned))
        rope = Rope("default", 10_000.0, self.shape.turns)
        normed = (
            part if norm is None else RmsNorm(norm, EPS)(part)
            for part, norm in zip((query, key), self.norms, strict=True)
        )  # fmt: skip
        query, key = (rotate(rope, part, turn) for part in normed)
        return query, key, value


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(torch.bfloat16)


def _apart(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm())


@pytest.mark.parametrize("case", [CASES[2], STILL[0], *map(long, [*CASES[:2], STILL[1]])])
def test_tokens_attend_to_their_own_sequence(case: Case) -> None:
    given = Given.of(case)
    result, keys, values = given.run(active=3)
    queries, _, _ = given.expected()
    for token in range(3):
        slot, length = int(WHERE[token]), int(POSITIONS[token]) + 1
        key, value = (part[slot, :length].double().transpose(0, 1) for part in (keys, values))
        query = queries[token].double()[:, None]
        want = functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
        assert _apart(result[token], want.flatten()) < case.close, token


@pytest.mark.parametrize("case", [CASES[1], *map(long, CASES[::2])])
def test_new_keys_and_values_are_in_the_cache_and_nothing_else_changes(case: Case) -> None:
    given = Given.of(case)
    _, keys, values = given.run(active=2)
    _, new_keys, new_values = given.expected()
    real = WHERE[:2], POSITIONS[:2]  # the third token is not
    assert torch.equal(values[real], new_values[:2])
    assert _apart(keys[real], new_keys[:2]) < CLOSE
    for part, before in ((keys, given.keys), (values, given.values)):
        changed = (part != before).flatten(2).any(-1).nonzero().tolist()
        assert changed == sorted(torch.stack(real, dim=1).tolist())


@pytest.mark.filterwarnings("ignore:invalid value")  # of the interpreter's numpy
def test_a_score_that_is_no_number_is_seen_in_the_first_token_already() -> None:
    given = Given.of(CASES[0])
    given.qkv[0, given.shape.heads] = float("nan")  # the key of the first KV head
    result, _, _ = given.run(active=3)
    first = result[0].view(given.shape.heads, WIDTH)
    assert first[0].isnan().all()
    assert first[1:].isfinite().all(), "others have keys of their own"


# Do tokens of prompts see what is in front of them in their own sequence, and nothing else?

SEGMENTS = [(2, 0, ROWS + 6), (0, 50, 3), (3, 90, 1)]  # slot, position, tokens


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 1)])
def test_tokens_attend_to_what_is_in_front_of_them(heads: int, kv_heads: int) -> None:
    torch.manual_seed(heads)
    width, slots, longest, tokens = 16, 4, 128, 80
    keys, values = (
        torch.randn(slots, longest, kv_heads, width).to(torch.bfloat16) for _ in range(2)
    )
    queries = torch.randn(tokens, heads, width).to(torch.bfloat16)
    attention = PromptAttention(
        tokens, heads, kv_heads, width, blocks_of(longest), width**-0.5, DEVICE
    )
    tiles = torch.zeros(most_tiles(tokens, slots), 4, dtype=torch.int64)
    found = tiles_of(SEGMENTS)
    tiles[: len(found)] = torch.tensor(found)
    (rows, table), (value_rows, _) = Scattered.of(keys), Scattered.of(values)
    given = (part.to(DEVICE) for part in (queries, rows, value_rows, table, tiles))
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
