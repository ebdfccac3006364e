"""How a table fits a given width: widths of its columns, or one block of lines per row.

Text wraps between words and is never cut: names, numbers and paths stay whole."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from rich.cells import cell_len

_READABLE = 12  # columns of sentences are not made narrower than this
_AROUND = 3  # a column's two spaces and its border
_NARROWEST = 20  # a block is not wrapped more tightly than this


def column_widths(
    heads: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> list[int] | None:
    """The widths of the columns of a table that is at most `width` wide. None if words would
    have to be cut, or sentences wrapped after every other word."""
    least = _least_widths(heads, rows)
    room = width - _AROUND * len(heads) - 1
    if sum(least) > room:
        return None
    widths = [max(map(_line_width, column)) for column in zip(heads, *rows, strict=True)]
    while sum(widths) > room:
        flexible = [place for place in range(len(heads)) if widths[place] > least[place]]
        widths[max(flexible, key=widths.__getitem__)] -= 1
    return widths


def least_width(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """The narrowest table that `column_widths` lays out."""
    return sum(_least_widths(heads, rows)) + _AROUND * len(heads) + 1


def row_blocks(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """The same table as lines: `head: text` for every cell that is not empty, and an empty line
    between rows. Of two columns the first names the second: `first: second`."""
    lines: list[str] = []
    for row in rows:
        if len(heads) == 2:
            lines += wrapped(": ".join(text for text in row if text), width)
            continue
        lines += [""] if lines else []
        for head, text in zip(heads, row, strict=True):
            if text:
                lines += wrapped(f"{head}: {text}" if head else text, width)
    return lines


def wrapped(text: str, width: int, indent: str = "  ") -> list[str]:
    """One line, or more where it is longer than `width`; words stay whole."""
    words = " ".join(text.split())
    return wrap(
        words, max(width, _NARROWEST), subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _line_width(text: str) -> int:
    return max(map(cell_len, text.split("\n")))


def _least_widths(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """The longest word, and a readable width for columns of sentences; heads may wrap more."""
    found = []
    for head, *column in zip(heads, *rows, strict=True):
        words = [word for text in (head, *column) for word in text.split()]
        sentences = min(max(map(_line_width, column), default=0), _READABLE)
        found.append(max(max(map(cell_len, words), default=1), sentences))
    return found
