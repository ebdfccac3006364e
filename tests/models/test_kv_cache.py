"""Does the cache remember what was written, slot by slot, up to its last place?"""

from __future__ import annotations

from dataclasses import replace

import loaded_models
import pytest
import torch

import stock
from made_up import small_model
from moesaic.core.errors import ImpossibleSetting
from moesaic.model_info.sliding_window import REWIND
from moesaic.models.attentions.kv_cache import BlockCache, cache_widths
from stock_text import prompt, stock_logits

SPEC = small_model(layers=2)
WIDTH = SPEC.num_kv_heads * SPEC.head_dim


def vectors(tokens: int, value: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys of `value`, values of its opposite."""
    return torch.full((tokens, WIDTH), value), torch.full((tokens, WIDTH), -value)


def test_widths_are_those_of_all_heads_of_keys_and_values() -> None:
    assert cache_widths(SPEC) == (50, 50)


def test_every_layer_of_a_step_writes_at_the_same_place() -> None:
    cache = BlockCache(SPEC, slots=2, max_length=5, dtype=torch.float32)
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
    cache = BlockCache(SPEC, slots=2, max_length=5, dtype=torch.float32)
    cache.extend(0, 0, *vectors(3, 1.0))
    cache.advance(0, 3)
    first, _ = cache.extend(0, 1, *vectors(1, 9.0))
    assert first[:, 0].tolist() == [9.0]
    first, _ = cache.extend(0, 0, *vectors(1, 2.0))
    assert first[:, 0].tolist() == [1.0, 1.0, 1.0, 2.0]


def test_the_last_place_can_be_used_and_no_further_one() -> None:
    cache = BlockCache(SPEC, slots=1, max_length=5, dtype=torch.float32)
    cache.extend(0, 0, *vectors(3, 1.0))
    cache.advance(0, 3)
    cache.extend(0, 0, *vectors(2, 1.0))
    with pytest.raises(ImpossibleSetting, match=r"of 6 tokens .* holds 5"):
        cache.extend(0, 0, *vectors(3, 1.0))


def test_what_lies_beyond_is_forgotten() -> None:
    cache = BlockCache(SPEC, slots=1, max_length=5, dtype=torch.float32)
    cache.extend(0, 0, *vectors(4, 1.0))
    cache.advance(0, 4)
    cache.truncate(0, 1)
    assert cache.length(0) == 1
    first, _ = cache.extend(0, 0, *vectors(1, 7.0))
    assert first[:, 0].tolist() == [1.0, 7.0]
    with pytest.raises(AssertionError, match="more than it holds"):
        cache.truncate(0, 2)


# Does a layer with a sliding window keep what its tokens see, and no more?

WINDOW, STEP = 4, 3
WINDOWED = replace(small_model(layers=2), sliding_window=WINDOW, window_layers=(1,))
KV_WIDTH = WINDOWED.num_kv_heads * WINDOWED.head_dim


def cache(length: int = 500) -> BlockCache:
    return BlockCache(WINDOWED, 2, length, torch.float32, step_tokens=STEP)


def feed(memory: BlockCache, tokens: int, slot: int = 0) -> tuple[list[float], list[float]]:
    """Tokens that are their positions; returns those that each of the two layers reads."""
    start = memory.length(slot)
    new = torch.arange(start, start + tokens, dtype=torch.float32)[:, None].expand(-1, KV_WIDTH)
    seen = [memory.extend(layer, slot, new, -new) for layer in range(2)]
    for first, second in seen:
        assert torch.equal(first, -second)
    memory.advance(slot, tokens)
    full, windowed = (first[:, 0].tolist() for first, _ in seen)
    return full, windowed


def test_each_step_reads_what_its_first_token_sees() -> None:
    memory = cache()
    for step in range(80):
        start, tokens = memory.length(0), 1 + step % STEP
        full, windowed = feed(memory, tokens)
        assert full == list(range(start + tokens))
        assert windowed == list(range(max(start - WINDOW + 1, 0), start + tokens))


def test_it_does_not_grow_with_the_sequence() -> None:
    full = 2 * 2 * KV_WIDTH * 4  # bytes of a token: keys and values of two slots
    assert cache(2048).nbytes - cache(1024).nbytes == 1024 * full
    assert cache(1024).nbytes == (1024 + WINDOW - 1 + REWIND + STEP) * full


def test_a_sequence_can_be_shortened_by_what_is_kept_for_it() -> None:
    """At every length, also where the rest has just moved."""
    for length in range(100, 100 + 2 * STEP):
        memory = cache()
        while memory.length(0) < length:
            feed(memory, 1)
        memory.truncate(0, length - REWIND)
        _, windowed = feed(memory, 2)
        assert windowed == list(range(length - REWIND - WINDOW + 1, length - REWIND + 2))


def test_further_back_there_is_only_the_beginning() -> None:
    memory = cache()
    for _ in range(100):
        feed(memory, 1)
    least = memory.least_length(0)
    assert 0 < least <= 100 - REWIND
    with pytest.raises(AssertionError, match="has left the sliding window"):
        memory.truncate(0, least - 1)
    memory.truncate(0, least)
    assert feed(memory, 1)[1][-WINDOW:] == [*range(least - WINDOW + 1, least + 1)]
    memory.truncate(0, 0)
    assert memory.least_length(0) == 0
    assert feed(memory, 2) == ([0, 1], [0, 1])


def test_a_step_that_fails_half_way_can_be_repeated() -> None:
    memory = cache()
    for _ in range(WINDOW + REWIND + STEP):
        feed(memory, 1)
    before = memory.length(0)
    new = torch.full((STEP, KV_WIDTH), -1.0)
    memory.extend(1, 0, new, new)  # and nothing advances
    assert feed(memory, STEP)[1] == list(range(before - WINDOW + 1, before + STEP))


def test_a_copied_slot_goes_on_by_itself() -> None:
    memory = cache()
    for _ in range(100):
        feed(memory, 1)
    memory.copy(0, 1)
    feed(memory, 1)
    assert feed(memory, 1, slot=1)[1] == [97, 98, 99, 100]


def test_the_beginning_of_a_slot_is_copied_as_far_back_as_it_is_kept() -> None:
    memory = cache()
    for _ in range(100):
        feed(memory, 1)
    with pytest.raises(AssertionError, match="has left the sliding window"):
        memory.copy(0, 1, memory.least_length(0) - 1)
    memory.copy(0, 1, 90)
    assert memory.length(1) == 90
    assert feed(memory, 1, slot=1)[1] == [87, 88, 89, 90]


def test_a_longer_step_than_was_planned_is_refused() -> None:
    memory = cache()
    for _ in range(100):
        feed(memory, 1)
    with pytest.raises(ImpossibleSetting, match=f"{STEP + 1} new tokens .* takes {STEP}: feed"):
        feed(memory, STEP + 1)


@pytest.mark.parametrize("name", ["gpt-oss", "mixtral-windowed", "qwen2-moe-windowed"])
def test_logits_are_the_stock_models_when_the_buffer_is_full(name: str) -> None:
    """A text several times as long as window and buffer, in pieces and token by token."""
    model, folder = stock.saved(name)
    tokens = prompt(128)
    theirs, _ = stock_logits(model, tokens)
    mine = loaded_models.load(folder)
    spec = mine.decoder.architecture.spec
    mine.cache = BlockCache(spec, 1, 128, mine.decoder.dtype, step_tokens=7)
    ends = [*range(7, 113, 7), *range(113, 129)]
    seen = [mine.logits([tokens[a:b]])[0] for a, b in zip([0, *ends], ends, strict=False)]
    assert (theirs - torch.cat(seen)).abs().max() < 1e-4
    assert mine.cache.least_length(0) > 0, "nothing has left the buffer"
