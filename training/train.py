"""Trains the model, as far as the time goes; called again with --resume, goes on.

    python -m training.train --prepared FOLDER --run FOLDER [--minutes 9] [--resume]

Nothing heavy is imported before it is needed: worker processes read this file, too.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from training.command import run_command
from training.recipe import BUNDLED, read_recipe


def main() -> None:
    options = _parser().parse_args()
    recipe = read_recipe(options.recipe)
    if options.steps is not None:
        recipe = recipe.with_run(steps=options.steps)

    from training.loop import Request, train

    train(
        Request(
            recipe,
            prepared=options.prepared,
            run=options.run,
            resume=options.resume,
            minutes=options.minutes,
            planned_minutes=options.planned_minutes,
            workers=options.workers,
            device=options.device,
            compiled=options.compile,
        )
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m training.train", description=__doc__)
    parser.add_argument("--prepared", type=Path, required=True, help="what training.prepare made")
    parser.add_argument("--run", type=Path, required=True, help="folder of checkpoint and log")
    parser.add_argument("--recipe", type=Path, default=BUNDLED)
    parser.add_argument("--resume", action="store_true", help="go on where the run's folder is")
    parser.add_argument("--steps", type=int, help="the whole run's length, instead of the recipe's")
    parser.add_argument(
        "--planned-minutes",
        type=float,
        help="the whole run's length in minutes of training, over all calls, instead of steps",
    )
    parser.add_argument("--minutes", type=float, help="stop this call in good time before that")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--device", help="cuda where there is one, else cpu")
    parser.add_argument("--compile", action="store_true", help="torch.compile, if it works here")
    return parser


if __name__ == "__main__":
    run_command(main)
