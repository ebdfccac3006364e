"""Rotation and attention by their definitions, value by value: no model, no library."""

from __future__ import annotations

import cmath
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import loaded_models
import pytest
import torch
from transformers import DeepseekV2Config, Qwen3MoeConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.deepseek_v2.modeling_deepseek_v2 import yarn_apply_mscale

import stock
from made_up import small_model
from moesaic.core.errors import BadConfig
from moesaic.model_info.network import LatentAttentionSpec, Rope
from moesaic.models.attentions.attention import attend, attend_shared
from moesaic.models.attentions.kv_cache import BlockCache
from moesaic.models.attentions.latent_attention import LatentAttention
from moesaic.models.attentions.rope import Rotation, frequencies, rotate, rotation
from moesaic.models.configs.network_reader import read_architecture
from moesaic.models.open_model import load_decoder, open_model
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
    cache = BlockCache(small_model(), 2, 16, torch.float32)
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


# Do positions turn as the stock library says, at every setting it has?

# Values away from the defaults and from each other; None: the field is not there.
SETTINGS: dict[str, list[Any]] = {
    "rope_theta": [5000.0, 6.0],  # with the second, all dimensions turn often
    "factor": [1.0, 3.0],
    "original_max_position_embeddings": [40, 700],
    "beta_fast": [None, 0, 6, 1000],
    "beta_slow": [None, 0, 0.3, 7],  # with 7 and the shorter context, the ramp is a step
    "truncate": [None, False],
}
MAGNITUDES: list[dict[str, float]] = [
    {"attention_factor": 1.4},
    {"attention_factor": 1.4, "mscale": 0.7, "mscale_all_dim": 0.9},
    {"mscale": 0.7, "mscale_all_dim": 0.9},
    {"mscale": 0.7},
    {"mscale_all_dim": 0.9},
    {"mscale": 0.7, "mscale_all_dim": 0.0},
    {"mscale": 0.0, "mscale_all_dim": 0.9},
]


def settings() -> list[dict[str, Any]]:
    chosen = [
        {name: value for name, value in zip(SETTINGS, values, strict=True) if value is not None}
        for values in itertools.product(*SETTINGS.values())
    ]
    base = {"factor": 3.0, "original_max_position_embeddings": 700}
    return [*chosen, *(base | extra for extra in MAGNITUDES)]


def ours_and_theirs(
    folder: Path, kind: str, extra: dict[str, Any], family: str = "qwen3-moe"
) -> tuple[tuple[torch.Tensor, float], tuple[torch.Tensor, float]]:
    """Frequencies and magnitude."""
    rope = {"rope_type": kind, "rope_theta": 5000.0, **extra}
    fields = json.loads((stock.saved(family).folder / "config.json").read_text())
    fields |= {"rope_parameters": rope, "head_dim": 24, "max_position_embeddings": 2048}
    (folder / "config.json").write_text(json.dumps(fields))
    config = {"qwen3-moe": Qwen3MoeConfig, "deepseek-v2": DeepseekV2Config}[family]
    (read,) = read_architecture(folder).network.ropes
    theirs = ROPE_INIT_FUNCTIONS[kind](config(**json.loads(json.dumps(fields))), "cpu")
    return (frequencies(read), read.magnitude), theirs


def test_yarn_has_the_stock_frequencies_and_magnitude(tmp_path: Path) -> None:
    for extra in settings():
        (mine, magnitude), (theirs, factor) = ours_and_theirs(tmp_path, "yarn", extra)
        assert torch.equal(mine, theirs), extra
        assert magnitude == pytest.approx(factor, rel=1e-12), extra


@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        ("linear", {"factor": 3.0}),
        ("linear", {"factor": 1.0, "rope_theta": 1.5}),
        ("yarn", {"factor": 1.5, "rope_theta": 1.5}),
        ("yarn", {"factor": 3.0}),  # the original context is the whole one
        ("yarn", {"factor": None, "original_max_position_embeddings": 700}),  # by the lengths
    ],
)
@pytest.mark.parametrize("family", ["qwen3-moe", "deepseek-v2"])
def test_what_is_not_stated_follows(
    kind: str, extra: dict[str, Any], family: str, tmp_path: Path
) -> None:
    (mine, magnitude), (theirs, factor) = ours_and_theirs(tmp_path, kind, extra, family)
    assert torch.equal(mine, theirs)
    assert magnitude == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("kind", ["default", "linear", "yarn"])
def test_latent_attention_sharpens_its_scores_as_the_stock_model_does(
    kind: str, tmp_path: Path
) -> None:
    stretched = {} if kind == "default" else {"factor": 3.0}
    for weight in (0.0, 0.9):
        rope = {"rope_type": kind, "rope_theta": 5000.0, "mscale_all_dim": weight, **stretched}
        fields = json.loads((stock.saved("deepseek-v2").folder / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(fields | {"rope_parameters": rope}))
        first = read_architecture(tmp_path).network.layers[0].attention
        assert isinstance(first, LatentAttentionSpec)
        scale = first.scale
        assert scale == pytest.approx(yarn_apply_mscale(rope, 20**-0.5), rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "extra", "said"),
    [
        ("default", {"rope_theta": 0.5}, "rope_theta: expected a number of 1 or more, not 0.5"),
        ("linear", {"factor": 0.5}, "factor: expected a number of 1 or more, not 0.5"),
        ("yarn", {"factor": 0.5}, "factor: expected a number of 1 or more, not 0.5"),
    ],
)
def test_positions_are_stretched_not_pressed(
    kind: str, extra: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(BadConfig, match=said):
        ours_and_theirs(tmp_path, kind, extra)


# Do the two orders of latent attention's products give the same result?


@pytest.mark.parametrize(("new", "cached"), [(1, 1), (1, 30), (5, 30), (30, 30)])
def test_absorbing_the_expansion_changes_nothing(new: int, cached: int) -> None:
    decoder = load_decoder(open_model(stock.saved("deepseek-v2").folder), "fp32")
    attention = decoder.layers[1].attention
    assert isinstance(attention, LatentAttention)
    shape, generator = attention.spec, torch.Generator().manual_seed(new)
    plain = torch.randn(new, 4, shape.plain_dim, generator=generator)
    turning = torch.randn(new, 4, shape.rope_dim, generator=generator)
    latents = torch.randn(cached, shape.rank, generator=generator)
    keys = torch.randn(cached, shape.rope_dim, generator=generator)
    expanded = attention.expanded(plain, turning, latents, keys)
    absorbed = attention.absorbed(plain, turning, latents, keys)
    assert expanded.shape == (new, 4, shape.value_dim)
    assert (expanded - absorbed).abs().max() < 1e-5


def test_the_cheaper_order_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of DeepSeek-V2's shapes, per head and cached token: a new token costs 2 x 512 + 64 products
    when absorbed; when expanded 128 + 64 + 128, and all of them together 512 x (128 + 128) once.
    So up to 170 are absorbed."""
    model = loaded_models.load(stock.saved("deepseek-v2").folder)
    attention = model.decoder.layers[1].attention
    assert isinstance(attention, LatentAttention)
    spec = replace(attention.spec, rank=512, rope_dim=64, plain_dim=128, value_dim=128)
    large = replace(attention, spec=spec)
    assert [large._is_short(new) for new in (1, 170, 171)] == [True, True, False]
    monkeypatch.setattr(LatentAttention, "expanded", None)
    model.logits([[3]])
    with pytest.raises(TypeError):
        model.logits([list(range(40))])
