"""Generated parts of a documentation page, between marks that readers do not see."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from moesaic.core.errors import ImpossibleSetting


def put(text: str, mark: str, content: str) -> str:
    """The text with something else between two marks."""
    begin, end = f"<!-- {mark} -->\n", f"\n<!-- end of {mark} -->"
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise ImpossibleSetting(f"the page lacks the marks of the table {mark!r}: {begin.strip()}")
    return f"{before}{begin}{content}{end}{after}"


# Tables for documentation pages.


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
