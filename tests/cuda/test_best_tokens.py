"""Does one kernel find what argmax finds, and say where that is no number? Needs a GPU."""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from best_token_cases import CASES, Case, random_case
from moesaic.kernels.gpu.best_tokens import BestTokens


def check(case: Case) -> None:
    best = BestTokens(len(case.logits))
    for _ in range(2):  # again with what the first has left
        tokens = torch.full((len(case.logits),), -7, dtype=torch.int64, pin_memory=True)
        best.launch(case.logits.cuda(), tokens)
        torch.cuda.synchronize()
        assert tokens.tolist() == case.tokens


@pytest.mark.parametrize("name", CASES)
def test_values_that_are_not_numbers_are_reported(name: str) -> None:
    check(CASES[name])


@pytest.mark.parametrize("rows", [1, 3, 64, 256])
@pytest.mark.parametrize("vocabulary", [7, 1000, 50_257, 151_936])
def test_the_first_of_the_largest_is_found(rows: int, vocabulary: int) -> None:
    check(random_case(rows, vocabulary))
