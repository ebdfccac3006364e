"""Does one kernel find what argmax finds, and say where that is no number? Needs a GPU."""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from moesaic.kernels.gpu.best_tokens import BestTokens


def found(logits: torch.Tensor) -> list[int]:
    best = BestTokens(len(logits))
    tokens = torch.full((len(logits),), -7, dtype=torch.int64, pin_memory=True)
    for _ in range(2):  # again with what the first has left
        tokens.fill_(-7)
        best.launch(logits.to("cuda", torch.bfloat16), tokens)
        torch.cuda.synchronize()
    first: list[int] = tokens.tolist()
    return first


@pytest.mark.parametrize("rows", [1, 3, 64, 256])
@pytest.mark.parametrize("vocabulary", [7, 1000, 50_257, 151_936])
def test_the_first_of_the_largest_is_found(rows: int, vocabulary: int) -> None:
    """Rounded to bf16, many are equal."""
    torch.manual_seed(rows)
    logits = torch.randn(rows, vocabulary).to(torch.bfloat16)
    assert found(logits) == [row.index(max(row)) for row in logits.tolist()]


def test_all_may_be_below_zero() -> None:
    assert found(torch.tensor([[-3.0, -1.0, -2.0], [-5.0, -5.0, -9.0]])) == [1, 0]


def test_zeros_are_equal() -> None:
    assert found(torch.tensor([[-1.0, -0.0, 0.0], [-1.0, 0.0, -0.0]])) == [1, 1]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_told(value: float) -> None:
    logits = torch.zeros(3, 5000)
    logits[1, 4321] = value
    assert found(logits) == [0, -1, 0]


def test_nothing_but_minus_infinity_is_told() -> None:
    low = torch.full((2, 300), float("-inf"))
    low[1, 299] = -1e30
    assert found(low) == [-1, 299]
