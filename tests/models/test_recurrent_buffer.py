"""Linear attention's states: can a sequence be cut into any pieces, shortened, copied, and a step
be undone, with the stock model's logits after it?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import loaded_models
import pytest
import torch

import stock
from interrupting import Interrupt
from moesaic.model_info.sliding_window import REWIND
from moesaic.models.attentions import recurrent_buffer
from moesaic.models.experts.expert_service import ExpertService, RoutedTokens
from stock_text import prompt, stock_logits

NAME = "qwen3-next"
TOKENS = prompt(128)
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def truth() -> torch.Tensor:
    logits, _ = stock_logits(stock.saved(NAME).model, TOKENS)
    return logits


@pytest.fixture(scope="module")
def shared() -> loaded_models.Ours:
    return loaded_models.load(stock.saved(NAME).folder, slots=2)


@pytest.fixture
def model(shared: loaded_models.Ours) -> loaded_models.Ours:
    for slot in range(shared.slots):
        shared.cache.truncate(slot, 0)
    return shared


def feed(model: loaded_models.Ours, pieces: Sequence[int], slot: int = 0) -> torch.Tensor:
    """The next tokens of the text, in pieces of these lengths."""
    seen = []
    for length in pieces:
        at = model.cache.length(slot)
        seen += model.logits([TOKENS[at : at + length]], [slot])
    return torch.cat(seen)


def assert_goes_on(model: loaded_models.Ours, truth: torch.Tensor, slot: int = 0) -> None:
    """A single token, then several."""
    for length in (1, 5):
        at = model.cache.length(slot)
        got = feed(model, [length], slot)
        assert (got - truth[at : at + length]).abs().max() < TOLERANCE


@pytest.mark.parametrize(
    "pieces",
    [
        [128],
        [1] * 128,
        [REWIND, REWIND + 1, REWIND - 1, REWIND],
        [90, 1, 1, 1, 33, 1, 1],
        [5, 60, 2, 61],
    ],
    ids=str,
)
def test_pieces_of_any_length(
    model: loaded_models.Ours, truth: torch.Tensor, pieces: list[int]
) -> None:
    assert (feed(model, pieces) - truth).abs().max() < TOLERANCE


@pytest.mark.parametrize("before", [[70], [40, *[1] * 45], [1] * 75, [64, 3, 33]], ids=len)
@pytest.mark.parametrize("by", [1, 2, 17, REWIND])
def test_a_sequence_can_be_shortened(
    model: loaded_models.Ours, truth: torch.Tensor, before: list[int], by: int
) -> None:
    feed(model, before)
    length = sum(before)
    assert model.cache.least_length(0) <= length - REWIND
    model.cache.truncate(0, length - by)
    assert_goes_on(model, truth)
    model.cache.truncate(0, length - by + 2)  # within the piece
    assert_goes_on(model, truth)


def test_at_every_length_it_can_be_shortened_by_as_much_as_windows_can(
    model: loaded_models.Ours,
) -> None:
    for length in range(1, 128):
        feed(model, [1])
        assert model.cache.least_length(0) <= max(length - REWIND, 0)
    least = model.cache.least_length(0)
    with pytest.raises(AssertionError, match="no state is as old"):
        model.cache.truncate(0, least - 1)


class Failing:
    """Experts that fail in one layer."""

    def __init__(self, inner: ExpertService, layer: int) -> None:
        self.inner, self.layer = inner, layer

    def compute(self, routed: RoutedTokens) -> torch.Tensor:
        if routed.layer == self.layer:
            raise KeyboardInterrupt
        return self.inner.compute(routed)


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("step", [1, 20, 50])
@pytest.mark.parametrize("before", [[0], [40], [20, *[1] * 45]], ids=len)
def test_a_step_that_fails_can_be_repeated(
    model: loaded_models.Ours, truth: torch.Tensor, before: list[int], step: int, layer: int
) -> None:
    length = sum(before)
    if length:
        feed(model, before)
    working = model.experts
    model.experts = Failing(working, layer)
    try:
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                feed(model, [step])
            model.cache.truncate(0, length)
    finally:
        model.experts = working
    assert_goes_on(model, truth)


@pytest.mark.parametrize("step", [1, 50])
@pytest.mark.parametrize("before", [[40], [1] * 64], ids=["after a prompt", "log full"])
def test_an_interruption_before_any_line_can_be_undone(
    model: loaded_models.Ours, truth: torch.Tensor, before: list[int], step: int
) -> None:
    """Layers run the same lines, and their number shifts: with a stride all get their turn."""
    feed(model, before, slot=1)
    length, where = sum(before), (recurrent_buffer.__file__,)
    for at in count(1, 5):
        model.cache.truncate(0, 0)
        model.cache.copy(1, 0)
        try:
            with Interrupt(at, where):
                feed(model, [step])
            break
        except KeyboardInterrupt:
            model.cache.truncate(0, length)
            got = feed(model, [1])
            assert (got - truth[length]).abs().max() < TOLERANCE, at
    assert at > 50, "the lines are somewhere else"


def test_a_step_whose_tokens_count_already_can_be_undone(
    model: loaded_models.Ours, truth: torch.Tensor
) -> None:
    """As when it is interrupted after the last layer."""
    feed(model, [40, 50])
    model.cache.truncate(0, 40)
    assert_goes_on(model, truth)


@pytest.mark.parametrize("length", [None, 60])
def test_a_copy_goes_on_by_itself(
    model: loaded_models.Ours, truth: torch.Tensor, length: int | None
) -> None:
    feed(model, [50, *[1] * 20])
    model.cache.copy(0, 1, length)
    model.logits([[3, 4, 5]], [0])
    assert model.cache.length(1) == (length or 70)
    assert_goes_on(model, truth, slot=1)


def test_a_slot_begins_anew(model: loaded_models.Ours, truth: torch.Tensor) -> None:
    model.logits([[3, 4, 5]], [0])
    model.cache.truncate(0, 0)
    assert_goes_on(model, truth)
