"""Do the two orders of latent attention's products give the same result?"""

from __future__ import annotations

import pytest
import torch

import stock
from moesaic.models.latent_attention import LatentAttention
from moesaic.models.load import load_decoder, open_model


@pytest.mark.parametrize(("new", "cached"), [(1, 1), (1, 30), (5, 30), (30, 30)])
def test_absorbing_the_expansion_changes_nothing(new: int, cached: int) -> None:
    decoder = load_decoder(open_model(stock.saved("deepseek-v2").folder), "fp32")
    attention = decoder.layers[1].attention
    assert isinstance(attention, LatentAttention)
    shape, generator = attention.shape, torch.Generator().manual_seed(new)
    plain = torch.randn(new, 4, shape.qk_nope_head_dim, generator=generator)
    turning = torch.randn(new, 4, shape.qk_rope_head_dim, generator=generator)
    latents = torch.randn(cached, shape.kv_lora_rank, generator=generator)
    keys = torch.randn(cached, shape.qk_rope_head_dim, generator=generator)
    expanded = attention.expanded(plain, turning, latents, keys)
    absorbed = attention.absorbed(plain, turning, latents, keys)
    assert expanded.shape == (new, 4, shape.v_head_dim)
    assert (expanded - absorbed).abs().max() < 1e-5
