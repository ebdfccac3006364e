"""A question with its worked solution."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    question: str
    worked: str  # ends with the line "Answer: <answer>"
    answer: str
    kind: str
    template: str
    steps: int  # of arithmetic or of looking something up
    values: tuple[str, ...]  # what decides between train and held_out_numbers
