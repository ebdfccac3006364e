"""The gated delta rule: does solving whole chunks give what token after token gives?"""

from __future__ import annotations

import pytest
import torch

from moesaic.model_info.linear_attention import CHUNK
from moesaic.models.attentions.linear_attention import DeltaInputs, chunked, delta_rule, recurrent

HEADS, KEY, VALUE = 3, 10, 7


def inputs(tokens: int, seed: int = 0) -> DeltaInputs:
    """In fp64: the two must then agree to many digits."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(HEADS, tokens, *shape, generator=generator, dtype=torch.float64)

    key = torch.nn.functional.normalize(drawn(KEY), dim=-1)
    return DeltaInputs(drawn(KEY), key, drawn(VALUE), -drawn().exp() / 9, drawn().sigmoid())


def state() -> torch.Tensor:
    generator = torch.Generator().manual_seed(9)
    return torch.randn(HEADS, KEY, VALUE, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("tokens", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_chunks_give_what_single_tokens_give(tokens: int) -> None:
    given, before = inputs(tokens), state()
    ends = [torch.empty_like(before) for _ in range(2)]
    one_by_one = recurrent(given, before, ends[0])
    together = chunked(given, before, ends[1])
    assert one_by_one.shape == (HEADS, tokens, VALUE)
    assert torch.allclose(one_by_one, together, rtol=0, atol=1e-10)
    assert torch.allclose(*ends, rtol=0, atol=1e-10)
    assert torch.equal(before, state()), "the state that was given is not changed"
    assert (ends[0] - before).abs().max() > 0.1, "nothing was learnt"


@pytest.mark.parametrize("tokens", [1, 20, 100])
def test_a_state_can_be_replaced_by_its_successor(tokens: int) -> None:
    elsewhere, here = torch.empty_like(state()), state()
    results = [delta_rule(inputs(tokens), state(), elsewhere)]
    results.append(delta_rule(inputs(tokens), here, here))
    assert torch.equal(*results)
    assert torch.equal(elsewhere, here)


def test_pieces_give_what_the_whole_gives() -> None:
    whole, kept, end = inputs(150), state(), torch.empty_like(state())
    expected = delta_rule(whole, state(), end)
    parts = (slice(70), slice(70, 71), slice(71, 150))
    got = [delta_rule(whole.part(part), kept, kept) for part in parts]
    assert torch.allclose(torch.cat(got, 1), expected, rtol=0, atol=1e-10)
    assert torch.allclose(kept, end, rtol=0, atol=1e-10)


def test_a_strong_decay_is_no_infinity() -> None:
    """A token that forgets everything, in the middle of a chunk."""
    given = inputs(10)
    decay = given.decay.clone()
    decay[:, 4] = -1e4
    given = given._replace(decay=decay)
    both = [
        function(given, state(), torch.empty_like(state())) for function in (recurrent, chunked)
    ]
    assert both[0].isfinite().all()
    assert torch.allclose(*both, rtol=0, atol=1e-10)
