"""Prompt pieces mixed with decoding sequences: which tokens are in a step, with which context?"""

from __future__ import annotations

import numpy as np
import pytest
from trace_examples import example_trace

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.step import Step
from moesaic.workloads.block import join
from moesaic.workloads.steps import mixed_steps


def test_prompt_pieces_are_batched_with_decoded_tokens() -> None:
    """Documents 0 and 1 are decoded; 2 is read as a prompt, then 3, from where the piece before
    it ended."""
    trace = example_trace([3, 4, 5, 6])
    block = join(list(trace.blocks()))
    starts = [0, 3, 7, 12]
    rows = [
        [[0], [3], [7, 8, 9, 10]],
        [[1], [4], [11], [12, 13, 14]],
    ]
    found = mixed_steps(trace, prompt_tokens=4, decoding=2)
    for parts in rows:
        step = next(found)
        contexts = [part[0] - max(s for s in starts if s <= part[0]) for part in parts]
        sizes = [len(part) for part in parts]
        assert step.step == Step.of(zip(sizes, contexts, strict=True))
        flat = [row for part in parts for row in part]
        for layer in range(3):
            assert np.array_equal(step.layer(layer).experts, block.experts[flat, layer])
    assert list(found) == [], "three tokens are left of the last prompt, four are needed"


def test_a_step_is_planned_by_its_majority() -> None:
    trace = example_trace([40] * 8)
    (few,) = mixed_steps(trace, prompt_tokens=4, decoding=5, steps=1)
    (many,) = mixed_steps(trace, prompt_tokens=16, decoding=5, steps=1)
    assert (few.phase, few.step.prompt_tokens, few.step.decode_tokens) == ("decode", 4, 5)
    assert (many.phase, many.tokens, many.documents) == ("prefill", 21, 6)


def test_asking_for_too_much_says_what_there_is() -> None:
    trace = example_trace([3, 4, 5, 6])
    with pytest.raises(ImpossibleSetting, match="3 steps of 4 prompt tokens with 2 decoding"):
        list(mixed_steps(trace, 4, 2, steps=3))
    with pytest.raises(ImpossibleSetting, match="decoding must be at least 1"):
        list(mixed_steps(trace, 4, 0))
    with pytest.raises(ImpossibleSetting, match="steps must be at least 1"):
        list(mixed_steps(trace, 4, 2, steps=0))
    assert len(list(mixed_steps(trace, 4, 2, steps=50, wrap=True))) == 50
