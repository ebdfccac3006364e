"""docs/performance.md, measured and written by one script.

    python -m benchmarks.performance run --out RESULTS.json [--only SECTION,...] [--seconds LIMIT]
    python -m benchmarks.performance write [RESULTS.json...]

`run` runs every section's commands one after the other; `write` puts their figures into the page,
a later file's row in the place of an earlier one's. Sections: performance_rows.py.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.performance_file import SMALL_FOLDER, read
from benchmarks.performance_options import SMALL, add_options, asked_for
from benchmarks.performance_page import PAGE, RESULTS, rendered
from benchmarks.performance_results import merged
from benchmarks.performance_rows import all_rows
from benchmarks.performance_run import chosen, listed, run
from benchmarks.performance_small import small_models
from moesaic.core.errors import ImpossibleSetting, MoesaicError
from moesaic.core.files import whole_file


def measure(options: argparse.Namespace) -> int:
    """0 where every row has figures, else 1."""
    out: Path = options.out
    if out.is_dir() or not os.access(out.parent, os.W_OK):
        raise ImpossibleSetting(f"--out {out}: no file can be written there")
    with TemporaryDirectory(prefix=SMALL_FOLDER) as folder:
        asked = asked_for(options, small_models(Path(folder)) if options.small else SMALL)
        if options.list:
            print("\n".join(listed(asked, options.only)))
            return 0
        rows = chosen(all_rows(asked), options.only)
        _say(
            f"{len(rows)} rows, about {sum(row.seconds for row in rows)} s where they are made for"
        )
        result = run(rows, asked, out, options.seconds, options.commit, _say)
    return int(any("failed" in row for row in result["rows"]))


def _say(words: str) -> None:
    print(words, flush=True)


def write(options: argparse.Namespace) -> int:
    found = [read(path) for path in options.results or sorted(RESULTS.glob("*.json"))]
    page = rendered(PAGE.read_text(encoding="utf-8"), merged(found))
    with whole_file(PAGE, "w") as file:
        file.write(page)
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.performance", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    modes = made.add_subparsers(dest="mode", required=True)
    add_options(modes.add_parser("run", help="measure"))
    writing = modes.add_parser("write", help="put results into docs/performance.md")
    writing.add_argument(
        "results", nargs="*", type=Path, help="[all in benchmarks/results, by their names]"
    )
    return made


def main() -> int:
    options = parser().parse_args()
    try:
        return measure(options) if options.mode == "run" else write(options)
    except MoesaicError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
