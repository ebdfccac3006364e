"""Writes the problems that `moesaic eval` asks: python -m training.problems.evaluation_set.

They are the first of each held-out split with the seed that training is judged by, so that scores
can be compared with those of `training.check`. The package ships this file and not the generator.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
from collections.abc import Iterator
from pathlib import Path

from moesaic.core.files import whole_file
from moesaic.lab.evaluation import problem_set
from training.problems import generate

SEED = 0
PER_SPLIT = 1000  # as many as the model card's scores are of
PACKAGED = Path(problem_set.__file__).parent / "data" / problem_set.FILE


def evaluation_set() -> Iterator[dict[str, str]]:
    for split in problem_set.SPLITS:
        for problem in generate(split, SEED, PER_SPLIT):
            row = problem_set.HeldOutProblem(problem.question, problem.answer, problem.kind)
            yield {"split": split, **row._asdict()}


def packed() -> bytes:
    lines = "".join(f"{json.dumps(row)}\n" for row in evaluation_set())
    return lzma.compress(lines.encode(), preset=9 | lzma.PRESET_EXTREME)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m training.problems.evaluation_set", description=__doc__
    )
    parser.add_argument("-o", "--out", type=Path, default=PACKAGED, help="[the package's own]")
    asked = parser.parse_args(arguments)
    with whole_file(asked.out) as stream:
        stream.write(packed())
    return 0


if __name__ == "__main__":
    sys.exit(main())
