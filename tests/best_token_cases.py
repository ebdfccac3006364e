"""Logits and their best tokens, among them what argmax and bf16 are easily wrong about."""

from __future__ import annotations

from typing import NamedTuple

import torch

NAN, INFINITY = float("nan"), float("inf")


class Case(NamedTuple):
    logits: torch.Tensor  # [rows, vocabulary], bf16
    tokens: list[int]


def random_case(rows: int, vocabulary: int) -> Case:
    """Rounded to bf16 many are equal; the first of them counts."""
    torch.manual_seed(rows)
    logits = torch.randn(rows, vocabulary).to(torch.bfloat16)
    return Case(logits, [row.index(max(row)) for row in logits.tolist()])


def _with(value: float, row: int, at: int) -> torch.Tensor:
    logits = torch.zeros(3, 5000, dtype=torch.bfloat16)
    logits[row, at] = value
    return logits


def _rows(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.bfloat16)


CASES = {
    "below zero": Case(_rows([-3.0, -1.0, -2.0], [-5.0, -5.0, -9.0]), [1, 0]),
    "zeros are equal": Case(_rows([-1.0, -0.0, 0.0], [-1.0, 0.0, -0.0]), [1, 1]),
    "no number": Case(_with(NAN, 1, 4321), [0, -1, 0]),
    "infinite": Case(_with(INFINITY, 2, 17), [0, 0, -1]),
    "minus infinity beside others": Case(_with(-INFINITY, 0, 0), [1, 0, 0]),
    "nothing but minus infinity": Case(
        _rows([-INFINITY] * 300, [-INFINITY] * 299 + [-1e30]), [-1, 299]
    ),
}
