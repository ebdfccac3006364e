"""Rotation and attention by their definitions, value by value: no model, no library."""

from __future__ import annotations

import cmath
import math

import pytest
import torch

from made_up import small_model
from moesaic.model_info.network import Rope
from moesaic.models.attentions.attention import attend, attend_shared
from moesaic.models.attentions.kv_cache import ContiguousCache
from moesaic.models.attentions.rope import Rotation, frequencies, rotate, rotation
from moesaic.models.token_batch import RowSpan, Segment, make_batch


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("interleaved", "dim"), [(False, 6), (False, 8), (True, 8)])
def test_every_pair_is_turned_by_its_own_angle(interleaved: bool, dim: int) -> None:
    """As complex numbers, from the definition: theta to the power of -2 i / dim per position."""
    rope = Rope("default", 100.0, dim, magnitude=1.5, interleaved=interleaved)
    positions, x = torch.tensor([0, 3, 11]), drawn(3, 2, 8)
    turned = rotate(rope, x, rotation(rope, frequencies(rope), positions))
    assert turned.shape == x.shape
    half = dim // 2
    for token, position in enumerate(positions.tolist()):
        for head in range(2):
            before, after = x[token, head].tolist(), turned[token, head].tolist()
            for pair in range(half):
                a, b = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + half)
                turn = cmath.exp(1j * position * 100.0 ** (-2 * pair / dim)) * 1.5
                expected = complex(before[a], before[b]) * turn
                assert after[a] == pytest.approx(expected.real, abs=1e-5)
                assert after[b] == pytest.approx(expected.imag, abs=1e-5)
            assert after[dim:] == before[dim:], "the rest of the head is not turned"


def test_bf16_is_turned_in_its_own_dtype_or_neighbours_in_fp32() -> None:
    """As the stock models do it: with cosines rounded to bf16 or not."""
    x, angle = torch.full((1, 1, 2), 1.0, dtype=torch.bfloat16), torch.tensor([[1.0 + 2**-9]])
    turn = Rotation(angle, torch.zeros(1, 1))
    apart = rotate(Rope("default", 10.0, 2), x * 3, turn)
    beside = rotate(Rope("default", 10.0, 2, interleaved=True), x * 3, turn)
    assert apart.dtype == beside.dtype == torch.bfloat16
    assert apart.tolist() == [[[3.0, 3.0]]]
    exact = torch.tensor(3 * (1 + 2**-9)).to(torch.bfloat16)
    assert beside.flatten().tolist() == [float(exact)] * 2


def test_positions_follow_what_is_cached() -> None:
    """Two sequences: one goes on at position 4, one begins."""
    rope = Rope("default", 50.0, 4)
    cache = ContiguousCache(small_model(), 2, 16, torch.float32)
    cache.advance(1, 4)
    batch = make_batch(
        {rope: frequencies(rope)}, [Segment(1, 2), Segment(0, 3)], cache, torch.device("cpu")
    )
    assert batch.spans == (RowSpan(1, slice(0, 2)), RowSpan(0, slice(2, 5)))
    expected = rotation(rope, frequencies(rope), torch.tensor([4, 5, 0, 1, 2]))
    assert torch.equal(batch.turns[rope].cos, expected.cos)
    assert torch.equal(batch.turns[rope].sin, expected.sin)


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Query t of `new` stands at `all - new + t` and sees what is not later; heads share keys in
    groups of neighbours."""
    new, heads, every, shared = len(q), q.shape[1], len(k), q.shape[1] // k.shape[1]
    out = torch.zeros(new, heads, v.shape[2])
    for t in range(new):
        seen = every - new + t + 1
        for h in range(heads):
            scores = [scale * float(q[t, h] @ k[i, h // shared]) for i in range(seen)]
            weights = [math.exp(s - max(scores)) for s in scores]
            for i, weight in enumerate(weights):
                out[t, h] += weight / sum(weights) * v[i, h // shared]
    return out


@pytest.mark.parametrize(("new", "every"), [(1, 1), (1, 6), (6, 6), (4, 6), (2, 3)])
@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (4, 2), (3, 1)])
def test_attention_is_causal_scaled_and_grouped(
    new: int, every: int, heads: int, groups: int
) -> None:
    q, k = drawn(new, heads, 8, seed=1), drawn(every, groups, 8, seed=2)
    v = drawn(every, groups, 5, seed=3)
    found = attend(q, k, v, 0.7)
    torch.testing.assert_close(found, plain(q, k, v, 0.7), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("new", "every"), [(1, 1), (1, 6), (6, 6), (4, 6)])
def test_heads_may_share_one_key_and_one_value(new: int, every: int) -> None:
    q, k, v = drawn(new, 3, 8, seed=1), drawn(every, 8, seed=2), drawn(every, 5, seed=3)
    found = attend_shared(q, k, v, 0.7)
    torch.testing.assert_close(found, plain(q, k[:, None], v[:, None], 0.7), atol=1e-5, rtol=0)
