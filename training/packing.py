"""Documents packed into rows of one length, none of them cut, with little left over."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from training.tokenizer import END_ID

PERCENT = 100


class Encoded(NamedTuple):
    tokens: Sequence[int]
    percent: Sequence[int]  # how much each token counts when it is to be predicted


class Rows(NamedTuple):
    """[rows, length] each. Attention does not cross a start."""

    tokens: npt.NDArray[np.uint16]
    percent: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.bool_]  # the token begins a document

    def only(self, which: slice | npt.NDArray[np.int64]) -> Rows:
        return Rows(self.tokens[which], self.percent[which], self.starts[which])


def pack(documents: Sequence[Encoded], length: int) -> Rows:
    """Longest first, each into the fullest row that still takes it; what is longer than a row
    is left out. Rows come in the order they were opened."""
    rows: list[list[Encoded]] = []
    free: list[tuple[int, int]] = []  # (free tokens, row), sorted
    fitting = [document for document in documents if len(document.tokens) <= length]
    for document in sorted(fitting, key=lambda one: len(one.tokens), reverse=True):
        index = bisect_left(free, (len(document.tokens), -1))
        if index == len(free):
            rows.append([])
            free_tokens, row = length, len(rows) - 1
        else:
            free_tokens, row = free.pop(index)
        rows[row].append(document)
        insort(free, (free_tokens - len(document.tokens), row))
    return _arrays(rows, length)


def _arrays(rows: Sequence[Sequence[Encoded]], length: int) -> Rows:
    shape = (len(rows), length)
    made = Rows(
        np.full(shape, END_ID, np.uint16), np.zeros(shape, np.uint8), np.zeros(shape, np.bool_)
    )
    for index, row in enumerate(rows):
        at = 0
        for document in row:
            end = at + len(document.tokens)
            made.tokens[index, at:end] = document.tokens
            made.percent[index, at:end] = document.percent
            made.percent[index, at] = 0  # the first token has no context to be predicted from
            made.starts[index, at] = True
            at = end
        if at < length:
            made.starts[index, at] = True  # padding continues no document
    return made


def join_rows(parts: Sequence[Rows]) -> Rows:
    return Rows(
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.percent for part in parts]),
        np.concatenate([part.starts for part in parts]),
    )
