"""docs/trimoe.md from a run of its command.

moesaic reproduce trimoe --traces DIR --json > rows.json
python -m benchmarks.trimoe_page keep rows.json RESULT     the rows that the page shows
python -m benchmarks.trimoe_page write RESULT              its tables, between their marks
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple

from benchmarks import trimoe_body_tables as bodies
from benchmarks import trimoe_figure_tables as figures
from benchmarks import trimoe_headline_tables as headline
from benchmarks.marked_page import put
from benchmarks.trimoe_results import Results, keep, load, of_rows
from moesaic.core.errors import ImpossibleSetting, MoesaicError
from moesaic.core.files import whole_file

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "trimoe.md"
RESULT = Path(__file__).with_name("results") / "trimoe" / "2026-11-19.json"
COMMAND = "moesaic reproduce trimoe --traces DIR --json"


class PageTable(NamedTuple):
    """A table, and the rows that it is made of."""

    table: Callable[[Results], str]
    only: tuple[str, ...]
    traces: bool = False

    @property
    def commands(self) -> str:
        words = [f"moesaic reproduce trimoe --only {only}" for only in self.only]
        return ", ".join(f"`{each}{' --traces DIR' * self.traces}`" for each in words)


TABLES: Mapping[str, PageTable] = {
    "headline": PageTable(headline.headline_table, ("headline",)),
    "readings": PageTable(headline.readings_table, ("readings",)),
    "seeds": PageTable(headline.seeds_table, ("seeds",)),
    "memory": PageTable(headline.memory_tables, ("memory",)),
    "shares": PageTable(headline.shares_table, ("fig3",)),
    "sensitivity": PageTable(bodies.sensitivity_table, ("sensitivity",)),
    "migration": PageTable(headline.migration_table, ("migration",)),
    "figures": PageTable(figures.figures_table, ("fig6", "fig7", "fig8/chat", "sec5.5")),
    "single": PageTable(figures.single_table, ("fig5", "sec5.5")),
    "bars": PageTable(figures.bars_table, ("fig6",)),
    "latency": PageTable(figures.latency_table, ("fig9",)),
    "drift": PageTable(figures.drift_table, ("fig8",)),
    "small": PageTable(figures.small_table, ("sec5.5/batch",)),
    "utilisation": PageTable(figures.utilisation_table, ("table3",)),
    "real": PageTable(figures.real_table, ("real",), traces=True),
    "layouts": PageTable(figures.layouts_table, ("beyond",)),
    "check": PageTable(bodies.check_table, ("check",)),
    "spread": PageTable(bodies.spread_table, ("spread",), traces=True),
    "spread by system": PageTable(bodies.spread_by_system_table, ("spread/large", "spread/small")),
}


def rendered(page: str, results: Results) -> str:
    """The page with every table as the results have it; text around them stays."""
    for mark, part in TABLES.items():
        page = put(page, mark, f"{part.table(results)}\n\n{part.commands}")
    about = results.about
    words = f"Tables: commit {about.get('commit', 'unknown')}, {about.get('date', 'no date')}, "
    return put(page, "run", words + f"`{about.get('command', COMMAND)}`.")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, names in (("keep", ("rows", "result")), ("write", ("result",))):
        found = verbs.add_parser(verb)
        for name in names:
            found.add_argument(name, type=Path)
    asked = parser.parse_args(arguments)
    try:
        if asked.verb == "keep":
            keep_rows(asked.rows, asked.result)
        else:
            write(asked.result)
    except (MoesaicError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def keep_rows(rows: Path, result: Path) -> None:
    try:
        found = json.loads(rows.read_text(encoding="utf-8"))
        results = of_rows(
            found, {"command": COMMAND, "commit": _commit(), "date": str(date.today())}
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ImpossibleSetting(f"{rows} is not what `{COMMAND}` prints ({error})") from error
    for part in TABLES.values():
        part.table(results)
    missing = sorted(results.read - set(results.values))
    if missing:
        sys.stderr.write(
            f"{len(missing)} rows of the page are missing, the first is {missing[0]}\n"
        )
    keep(results, result)


def write(result: Path) -> None:
    page = rendered(PAGE.read_text(encoding="utf-8"), load(result))
    with whole_file(PAGE, "w") as file:
        file.write(page)


def _commit() -> str:
    words = ["git", "rev-parse", "--short", "HEAD"]
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
