"""The tables and the picture of docs/routing.md, out of recorded and real traces.

python -m benchmarks.record_routing_docs --ours out/routing gpt-oss-20b_decode.npz ...

--ours is the folder that `benchmarks.record_routing` wrote; the other traces are real ones to lay
beside it. Tables replace what stands between their marks in the page; the picture stands beside it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.marked_page import put
from benchmarks.record_routing import ALL
from moesaic.cli.trace.trace_columns import ROWS, Column, columns, table, work_of
from moesaic.cli.trace.trace_compare import MAX_TOKENS
from moesaic.cli.trace.trace_picture import draw_traces
from moesaic.core.errors import MoesaicError
from moesaic.core.files import whole_file
from moesaic.workloads.source import open_trace

SIDE_BY_SIDE, BY_SOURCE = "side by side", "by source"  # marks in the page
_SHAPE = ("layers", "experts", "top_k")
_SOURCE_ROWS = (
    "gini", "gini_document", "gini_apart", "overlap_1", "overlap_document", "overlap_global",
    "predict_1", "predict_popular", "active_8", "lru_25", "mrs_25", "belady_25",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("others", nargs="*", metavar="TRACE")
    parser.add_argument("--ours", default="out/routing")
    parser.add_argument("--page", default="docs/routing.md")
    asked = parser.parse_args(arguments)
    try:
        _write(Path(asked.ours), asked.others, Path(asked.page))
    except (MoesaicError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def _write(ours: Path, others: list[str], page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for mark in (SIDE_BY_SIDE, BY_SOURCE):
        put(text, mark, "")  # report what is missing before minutes of work
    whole = ours / f"{ALL}.moet"
    own = {whole.stem, open_trace(whole).header.model}
    parts = sorted(str(path) for path in ours.glob("*.moet") if path.stem not in own)
    together = _columns([*others, str(whole)], None)
    picture = page.with_suffix(".svg")
    shown = f"![Load, reuse and cache hits of the traces]({picture.name})"
    text = put(text, SIDE_BY_SIDE, f"{markdown(together, ROWS)}\n\n{shown}")
    text = put(text, BY_SOURCE, markdown(_columns(parts, "decode"), _SOURCE_ROWS))
    draw_traces(str(picture), together)
    with whole_file(page, "w") as stream:
        stream.write(text)
    print(f"wrote {page} and {picture}")


def _columns(files: Iterable[str], phase: str | None) -> list[Column]:
    work = work_of([(file, open_trace(file)) for file in files], phase)
    return list(columns(work, MAX_TOKENS))


def markdown(found: Sequence[Column], rows: Iterable[str]) -> str:
    """Phase and shape are stated only where columns differ in them."""
    alike = len({column.profile.phase for column in found}) == 1
    names = [c.label.removesuffix(f" {c.profile.phase}") if alike else c.label for c in found]
    lines = [["", *names], ["---"] * (len(names) + 1)]
    for name, *values in table(found, rows):
        if name in _SHAPE and len(set(values)) == 1:
            continue
        words = f"{ROWS[name]} (`{name}`)" if name in ROWS else name.replace("_", "-")
        lines.append([words, *values])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
