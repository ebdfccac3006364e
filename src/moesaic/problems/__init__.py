"""Questions with worked answers, made for training and judging a very small language model.

Knows nothing of models or tokens: text in, text out. `generate` gives problems of a split.
"""

from __future__ import annotations

from moesaic.problems.catalog import KINDS
from moesaic.problems.generate import SPLITS, generate
from moesaic.problems.problem import Problem, extract_answer, same_answer

__all__ = ["KINDS", "SPLITS", "Problem", "extract_answer", "generate", "same_answer"]
