"""Does the cache remember what was written, slot by slot, up to its last place?"""

from __future__ import annotations

import pytest
import torch

from made_up import small_model
from moesaic.core.errors import ImpossibleSetting
from moesaic.models.attentions.kv_cache import ContiguousCache, cache_widths

SPEC = small_model(layers=2)
WIDTH = SPEC.num_kv_heads * SPEC.head_dim


def vectors(tokens: int, value: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys of `value`, values of its opposite."""
    return torch.full((tokens, WIDTH), value), torch.full((tokens, WIDTH), -value)


def test_widths_are_those_of_all_heads_of_keys_and_values() -> None:
    assert cache_widths(SPEC) == (50, 50)


def test_every_layer_of_a_step_writes_at_the_same_place() -> None:
    cache = ContiguousCache(SPEC, slots=2, max_length=5, dtype=torch.float32)
    for layer in range(2):
        first, second = cache.extend(layer, 1, *vectors(2, 1.0 + layer))
        assert first[:, 0].tolist() == [1.0 + layer] * 2
        assert second[:, 0].tolist() == [-1.0 - layer] * 2
        assert cache.length(1) == 0
    cache.advance(1, 2)
    assert (cache.length(0), cache.length(1)) == (0, 2)
    for layer in range(2):
        first, second = cache.extend(layer, 1, *vectors(1, 5.0))
        assert first[:, 0].tolist() == [1.0 + layer, 1.0 + layer, 5.0]
        assert second[:, 0].tolist() == [-1.0 - layer, -1.0 - layer, -5.0]


def test_slots_do_not_share() -> None:
    cache = ContiguousCache(SPEC, slots=2, max_length=5, dtype=torch.float32)
    cache.extend(0, 0, *vectors(3, 1.0))
    cache.advance(0, 3)
    first, _ = cache.extend(0, 1, *vectors(1, 9.0))
    assert first[:, 0].tolist() == [9.0]
    first, _ = cache.extend(0, 0, *vectors(1, 2.0))
    assert first[:, 0].tolist() == [1.0, 1.0, 1.0, 2.0]


def test_the_last_place_can_be_used_and_no_further_one() -> None:
    cache = ContiguousCache(SPEC, slots=1, max_length=5, dtype=torch.float32)
    cache.extend(0, 0, *vectors(3, 1.0))
    cache.advance(0, 3)
    cache.extend(0, 0, *vectors(2, 1.0))
    with pytest.raises(ImpossibleSetting, match=r"of 6 tokens .* holds 5"):
        cache.extend(0, 0, *vectors(3, 1.0))


def test_what_lies_beyond_is_forgotten() -> None:
    cache = ContiguousCache(SPEC, slots=1, max_length=5, dtype=torch.float32)
    cache.extend(0, 0, *vectors(4, 1.0))
    cache.advance(0, 4)
    cache.truncate(0, 1)
    assert cache.length(0) == 1
    first, _ = cache.extend(0, 0, *vectors(1, 7.0))
    assert first[:, 0].tolist() == [1.0, 7.0]
    with pytest.raises(AssertionError, match="more than it holds"):
        cache.truncate(0, 2)
