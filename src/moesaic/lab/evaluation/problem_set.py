"""The held-out problems that models are evaluated on: a fixed set, shipped as data.

`data/problems.jsonl.xz` has one JSON object per line, with the fields of `HeldOutProblem` and the
split. `python -m training.problems.evaluation_set` writes it; its order is part of the evaluation,
since smaller counts take the first problems of a split.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from moesaic.core.errors import ImpossibleSetting, UnknownName

SPLITS = ("held_out_numbers", "held_out_templates")
FILE = "problems.jsonl.xz"


class HeldOutProblem(NamedTuple):
    question: str
    answer: str
    kind: str


def held_out_problems(split: str, count: int) -> Sequence[HeldOutProblem]:
    """The first `count` of a split."""
    if split not in SPLITS:
        raise UnknownName("split", split, SPLITS)
    known = _problems()[split]
    if not 0 <= count <= len(known):
        raise ImpossibleSetting(
            f"{count} problems of {split} were asked for, and {len(known)} come with the package: "
            f"ask for at most {len(known)}"
        )
    return known[:count]


@cache
def _problems() -> dict[str, list[HeldOutProblem]]:
    found: dict[str, list[HeldOutProblem]] = {split: [] for split in SPLITS}
    packed = (files(__package__) / "data" / FILE).read_bytes()
    for line in lzma.decompress(packed).decode().splitlines():
        fields = json.loads(line)
        found[fields.pop("split")].append(HeldOutProblem(**fields))
    return found
