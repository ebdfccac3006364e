"""Does the count of what attention reads agree with counting every token?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from made_up import small_model
from moesaic.core.step import Step
from moesaic.model_info.attended import Attended, attended
from moesaic.model_info.linear_attention import LinearAttentionSizes

MODEL = small_model(layers=4)
STEP = Step.of([(1, 0), (1, 3), (1, 40), (7, 0), (9, 2), (3, 50), (20, 11)])


def counted(window: int | None) -> tuple[int, int]:
    """Tokens that one layer reads, and pairs of a new token and one that it sees."""
    read = pairs = 0
    for new, context in STEP.sequences:
        seen: set[int] = set()
        for at in range(context, context + new):
            sees = range(0 if window is None else max(at - window + 1, 0), at + 1)
            seen |= set(sees)
            pairs += len(sees)
        read += len(seen)
    return read, pairs


def test_without_windows_it_is_all_of_it() -> None:
    found = attended(MODEL, STEP)
    assert found == Attended(STEP.kv_tokens, STEP.attention_pairs)
    assert found[:2] == counted(None)


def test_layers_with_a_state_read_it_once_per_sequence() -> None:
    """Two of four layers; the state of a head is a matrix in fp32, read and written."""
    shape = LinearAttentionSizes(2, 4, 8, 16, 4)
    found = attended(replace(MODEL, linear_attention=shape, linear_layers=(0, 2)), STEP)
    assert found[:2] == (STEP.kv_tokens / 2, STEP.attention_pairs / 2)
    state = 4 * 8 * 16
    assert found.state_bytes == 2 * 4 * state * len(STEP.sequences) / 2
    assert found.state_flops == 3 * 2 * state * STEP.tokens / 2


@pytest.mark.parametrize("window", [1, 2, 5, 12, 30, 1000])
@pytest.mark.parametrize("layers", [(0, 2), (3,), (0, 1, 2, 3)])
def test_with_windows_it_is_the_mean_over_layers(window: int, layers: tuple[int, ...]) -> None:
    model = replace(MODEL, sliding_window=window, window_layers=layers)
    (near, near_pairs), (all_, all_pairs) = counted(window), counted(None)
    found, full = attended(model, STEP), 4 - len(layers)
    assert 4 * found.kv_tokens == pytest.approx(len(layers) * near + full * all_)
    assert 4 * found.pairs == pytest.approx(len(layers) * near_pairs + full * all_pairs)
