"""Questions with worked answers, made for training and judging a very small language model.

Knows nothing of models or tokens: text in, text out. `generate` gives problems of a split.
"""

from __future__ import annotations

from moesaic.lab.evaluation.final_answer import extract_answer, same_answer
from training.problems.catalog import KINDS
from training.problems.generate import SPLITS, generate
from training.problems.template import Problem

__all__ = ["KINDS", "SPLITS", "Problem", "extract_answer", "generate", "same_answer"]
