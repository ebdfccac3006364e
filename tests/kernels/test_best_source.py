"""Does the kernel of the best tokens find what argmax finds? Its source is compiled for the CPU."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from best_token_cases import CASES, Case, random_case
from cuda_on_host import COMPILER, compiled, launch

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
KERNEL = "best_tokens"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("best")
    return compiled("best", {}, [KERNEL], folder)


def check(library: ctypes.CDLL, case: Case, parts: int) -> None:
    rows, vocabulary = case.logits.shape
    found, ended = torch.zeros(rows, dtype=torch.int64), torch.zeros(rows, dtype=torch.int32)
    for _ in range(2):  # again with what the first has left
        tokens = torch.full((rows,), -7, dtype=torch.int64)
        launch(library, KERNEL, (parts, rows), 256, case.logits, vocabulary, found, ended, tokens)
        assert tokens.tolist() == case.tokens
        assert not found.any()
        assert not ended.any()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("parts", [1, 5])
def test_what_is_no_number_is_told(library: ctypes.CDLL, name: str, parts: int) -> None:
    check(library, CASES[name], parts)


@pytest.mark.parametrize("vocabulary", [7, 257, 5003])
def test_the_first_of_the_largest_is_found(library: ctypes.CDLL, vocabulary: int) -> None:
    check(library, random_case(4, vocabulary), 3)
