"""From how many tokens an expert is computed in matrix tiles instead of vectors.

`moesaic profile` measures it here and writes it down; these are for machines nobody has profiled,
measured on the reference machine. Never measured while a model loads: the choice changes rounding,
and two runs of a model should not differ.
"""

from __future__ import annotations

from collections.abc import Mapping

DEFAULT: Mapping[str, int] = {"bf16": 4, "int8": 8, "int4": 6}
