"""Is a sequence's text the same, to the bit, wherever its blocks of the KV cache lie?"""

from __future__ import annotations

import pytest
import torch
from loaded_models import Ours, load

import stock
from moesaic.models.attentions.kv_cache import BlockCache
from scattered_blocks import scatter
from stock_text import prompt

LENGTH = 300  # tokens, in five blocks
PIECES = ((100, 30), (27, 0), (1, 97), (1, 1), (90, 1), (1, 1))  # new tokens of two sequences


def said(ours: Ours) -> torch.Tensor:
    """The logits of all pieces."""
    left, found = [prompt(LENGTH), prompt(LENGTH, seed=2)], list[torch.Tensor]()
    for piece in PIECES:
        slots = [slot for slot, count in enumerate(piece) if count]
        found += ours.logits([left[slot][: piece[slot]] for slot in slots], slots)
        left = [tokens[count:] for tokens, count in zip(left, piece, strict=True)]
    return torch.cat(found)


@pytest.mark.parametrize("family", stock.FAMILIES)
def test_every_family_says_the_same(family: str) -> None:
    ours = load(stock.saved(family).folder, slots=2)
    spec, results = ours.decoder.architecture.spec, list[torch.Tensor]()
    for scattered in (False, True):
        ours.cache = BlockCache(spec, 2, LENGTH, ours.decoder.dtype)
        if scattered:
            scatter(ours.cache)
        results.append(said(ours))
    assert torch.equal(*results)


def test_a_copy_follows_both_tables() -> None:
    ours = load(stock.saved("qwen3-moe").folder, slots=3)
    ours.cache = BlockCache(ours.decoder.architecture.spec, 3, LENGTH, ours.decoder.dtype)
    scatter(ours.cache)
    tokens = prompt(LENGTH)
    ours.logits([tokens[:200]], [0])
    ours.cache.copy(0, 2, 130)
    (wanted,) = ours.logits([tokens[200:230]], [0])
    ours.logits([tokens[130:200]], [2])
    (found,) = ours.logits([tokens[200:230]], [2])
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0.0)
