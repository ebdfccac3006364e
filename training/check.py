"""Does an exported model reach what the project asks of it? A table, and exit status 1 if not.

python -m training.check MODEL --prepared FOLDER [--problems 1000] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from training.command import run_command
from training.evaluation import FORMS, Solved, load_summary
from training.examination import Examination
from training.export import read_exported
from training.fast_paths import find_paths
from training.recipe import Recipe, Run

LARGEST_MB = 40.0
NUMBERS, TEMPLATES = 0.80, 0.60  # exact match at full top-k
LARGEST_SHARE = 0.40  # of the tokens of a layer, for one expert
VISIBLE = 0.03  # exact match that half of the experts must cost, to be worth winning back


class Row(NamedTuple):
    question: str
    found: str
    wanted: str
    passed: bool


def size_rows(folder: Path, recipe: Recipe) -> Iterator[Row]:
    megabytes = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
    yield Row("size", f"{megabytes:.1f} MB", f"<= {LARGEST_MB} MB", megabytes <= LARGEST_MB)
    shape = recipe.shape
    found = f"{shape.layers} layers, {shape.top_k} of {shape.experts} experts"
    fits = shape.experts in (32, 64) and shape.top_k in (4, 8) and 8 <= shape.layers <= 12
    yield Row("shape", found, "8 to 12 layers, 4 or 8 of 32 or 64", fits)


def answer_rows(full: dict[str, Solved], half: dict[str, Solved], form: str) -> Iterator[Row]:
    for split, least in (("held_out_numbers", NUMBERS), ("held_out_templates", TEMPLATES)):
        share = full[split].share
        yield Row(f"{split}, {form}", f"{share:.1%}", f">= {least:.0%}", share >= least)
    lost = full["held_out_numbers"].share - half["held_out_numbers"].share
    yield Row(f"lost at half top-k, {form}", f"{lost:.1%}", f">= {VISIBLE:.0%}", lost >= VISIBLE)


def load_rows(loads: list[list[float]]) -> Iterator[Row]:
    summary = load_summary(loads)
    largest, unused = max(summary["largest_share"]), summary["unused"]
    yield Row("unused experts", str(unused), "0", unused == 0)
    fits = largest <= LARGEST_SHARE
    yield Row("largest share of tokens", f"{largest:.1%}", f"<= {LARGEST_SHARE:.0%}", fits)


def check(
    folder: Path, prepared: Path, problems: int, run: Run | None = None
) -> tuple[list[Row], dict[str, Any]]:
    """`run` says how long texts and answers may be."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    network, paths = read_exported(folder, dtype), find_paths(device, dtype)
    network.use_product(paths.product)
    network.to(device)
    recipe = Recipe(shape=network.shape, run=run or Run())
    examination = Examination(folder, prepared, recipe, paths.packed)
    loads, top_k = examination.loads(network), network.shape.top_k
    rows, exact = [*size_rows(folder, recipe), *load_rows(loads)], {}
    for form in FORMS:
        full = examination.solved(network, top_k, problems, form)
        half = examination.solved(network, top_k // 2 or 1, problems, form)
        rows += answer_rows(full, half, form)
        exact[form] = {
            split: {
                "full": full[split].share,
                "half": half[split].share,
                "by_kind": full[split].by_kind,
                "mistakes": full[split].mistakes,
            }
            for split in full
        }
    details = {
        "problems": problems,
        "exact_match": exact,
        "losses": examination.losses(network),
        "token_shares": loads,
        "continuations": examination.texts(network),
    }
    return rows, details


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.check", description=__doc__)
    parser.add_argument("model", type=Path, help="folder that training.export made")
    parser.add_argument("--prepared", type=Path, required=True, help="folder of held-out prose")
    parser.add_argument("--problems", type=int, default=1000, help="of each split")
    parser.add_argument("--json", type=Path, help="write everything there, too")
    options = parser.parse_args()
    rows, details = check(options.model, options.prepared, options.problems)
    for row in rows:
        verdict = "pass" if row.passed else "FAIL"
        print(f"{verdict}  {row.question:<34} {row.found:<32} {row.wanted}")
    print(f"      prose perplexity per token         {details['losses']['prose_perplexity']}")
    if options.json:
        content = {"rows": [row._asdict() for row in rows], **details}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if all(row.passed for row in rows) else 1)


if __name__ == "__main__":
    run_command(main)
