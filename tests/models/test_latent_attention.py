"""Do the two orders of latent attention's products give the same result?"""

from __future__ import annotations

from dataclasses import replace

import loaded_models
import pytest
import torch

import stock
from moesaic.models.attentions.latent_attention import LatentAttention
from moesaic.models.open_model import load_decoder, open_model


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
