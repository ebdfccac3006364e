"""Does attention over a static cache see each sequence's own tokens, and no others? Are new keys
and values what the models make of the same projections?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch
from torch.nn import functional

pytest.importorskip("triton")

from moesaic.kernels.gpu.attention import PIECE, CachedTokens, DecodeAttention, HeadShape
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
        attention = DecodeAttention(3, self.shape, LONGEST, turns, DEVICE)
        parts = (self.keys, self.values, WHERE, POSITIONS, torch.tensor([active]))
        cached = CachedTokens(*(part.to(DEVICE, copy=True) for part in parts))
        norms = [None if norm is None else norm.to(DEVICE) for norm in self.norms]
        attention.launch(self.qkv.to(DEVICE), norms, cached)  # again with what this has left
        result = attention.launch(self.qkv.to(DEVICE), norms, cached)
        return result.cpu(), cached.keys.cpu(), cached.values.cpu()

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


@pytest.mark.parametrize("case", CASES + STILL)
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


@pytest.mark.parametrize("case", CASES)
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
