"""Does the count of what attention reads agree with counting every token?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from made_up import small_model
from moesaic.core.step import Step
from moesaic.model_info.attended import attended

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
    assert attended(MODEL, STEP) == (STEP.kv_tokens, STEP.attention_pairs) == counted(None)


@pytest.mark.parametrize("window", [1, 2, 5, 12, 30, 1000])
@pytest.mark.parametrize("layers", [(0, 2), (3,), (0, 1, 2, 3)])
def test_with_windows_it_is_the_mean_over_layers(window: int, layers: tuple[int, ...]) -> None:
    model = replace(MODEL, sliding_window=window, window_layers=layers)
    (near, near_pairs), (all_, all_pairs) = counted(window), counted(None)
    found, full = attended(model, STEP), 4 - len(layers)
    assert 4 * found.kv_tokens == pytest.approx(len(layers) * near + full * all_)
    assert 4 * found.pairs == pytest.approx(len(layers) * near_pairs + full * all_pairs)
