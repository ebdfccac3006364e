"""A step as a mixture of sequences: do its sums hold, and which phase is it planned as?"""

from __future__ import annotations

import numpy as np
import pytest

from moesaic.core.step import SequenceTokens, Step

MIXED = Step.of([(5, 10), (1, 100), (1, 7), (3, 0)])


def looked_at(step: Step) -> int:
    """Pairs of a new token and one it looks at, counted one by one."""
    return sum(context + at + 1 for n, context in step.sequences for at in range(n))


def test_sums_over_sequences() -> None:
    assert MIXED.tokens == 10
    assert MIXED.num_sequences == 4
    assert MIXED.prompt_tokens == 8
    assert MIXED.decode_tokens == 2
    assert MIXED.kv_tokens == 10 + 117
    assert MIXED.attention_pairs == looked_at(MIXED) == 65 + 101 + 8 + 6


@pytest.mark.parametrize("context", [0, 1, 4095, 1_000_003])
@pytest.mark.parametrize(("batch", "each"), [(1, 1), (256, 1), (1, 4096), (7, 129)])
def test_equal_sequences_cost_what_the_formula_for_equal_sequences_says(
    batch: int, each: int, context: int
) -> None:
    """To the bit: simulated times are rounded from these."""
    step = Step.of([(each, context)] * batch)
    tokens = batch * each
    assert step.tokens == tokens
    assert step.kv_tokens == batch * (context + each)
    assert step.attention_pairs == tokens * (context + (each + 1) / 2)


def test_named_kinds_are_mixtures_of_one_kind() -> None:
    assert Step.decode(3, 8) == Step((SequenceTokens(1, 8),) * 3)
    assert Step.prompt(6, 2) == Step((SequenceTokens(6, 2),))
    assert Step.decode(2, 8).behind(4) == Step.decode(2, 12)
    assert MIXED.behind(2) == Step.of([(5, 12), (1, 102), (1, 9), (3, 2)])


@pytest.mark.parametrize(
    ("piece", "decoding", "phase"),
    [(61, 60, "prefill"), (60, 60, "decode"), (16, 60, "decode"), (2, 1, "prefill")],
)
def test_the_majority_of_tokens_says_how_a_mixture_is_planned(
    piece: int, decoding: int, phase: str
) -> None:
    step = Step.of([(piece, 0), *[(1, 50)] * decoding])
    assert step.phase == phase


def test_one_token_is_planned_as_one_token_also_of_a_prompt() -> None:
    assert Step.prompt(1).phase == Step.decode(1).phase == "decode"
    assert Step.prompt(2).phase == "prefill"


def test_a_step_has_tokens() -> None:
    with pytest.raises(AssertionError, match="without sequences"):
        Step(())
    with pytest.raises(AssertionError, match="brings a token"):
        Step.of([(0, 5)])


def test_pairs_are_counted_right_for_any_mixture() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        step = Step.of(rng.integers((1, 0), (40, 90), size=(9, 2)).tolist())
        assert step.attention_pairs == looked_at(step)
