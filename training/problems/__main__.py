"""A look at some problems: python -m training.problems --split train --count 5 --seed 1."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from moesaic.core.errors import MoesaicError
from training.problems import KINDS, SPLITS, generate


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m training.problems", description=__doc__)
    parser.add_argument("--split", default="train", help=", ".join(SPLITS))
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", help=f"some of {','.join(KINDS)}, with commas")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    asked = parser.parse_args(arguments)
    kinds = asked.kinds.split(",") if asked.kinds is not None else None
    try:
        for problem in generate(asked.split, asked.seed, asked.count, kinds):
            if asked.json:
                sys.stdout.write(json.dumps(asdict(problem)) + "\n")
            else:
                label = f"[{problem.kind}, {problem.template}]"
                sys.stdout.write(f"{label}\n{problem.question}\n{problem.worked}\n\n")
    except MoesaicError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except BrokenPipeError:
        sys.stderr.close()  # `| head` has seen enough
    return 0


if __name__ == "__main__":
    sys.exit(main())
