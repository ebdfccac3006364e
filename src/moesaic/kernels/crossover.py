"""Tokens of an expert from which on matrix tiles are used instead of vectors or, where there are
none, bytes instead of 16-bit codes beside int4 weights.

`moesaic profile` measures this and stores it with the machine description; these defaults, measured
on the reference machine, are for machines without one. It is never measured while a model loads:
the choice changes rounding, and two runs of a model should not differ.
"""

from __future__ import annotations

from collections.abc import Mapping

DEFAULT: Mapping[str, int] = {"bf16": 4, "int8": 8, "int4": 6}
