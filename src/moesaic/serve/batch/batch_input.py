"""The file of requests: read once to check it, and again, window by window, to answer it.

Of a line that is not being answered, three numbers are kept: a file may have millions of them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import BadFile
from moesaic.serve.batch.batch_line import (
    BatchLine,
    UnusableLine,
    decode_line,
    hash_of,
    prompt_key,
)

LONGEST_LINE = 64 << 20  # bytes
_WINDOW_LINES, _WINDOW_BYTES = 1024, 32 << 20  # that are put in order together
_SHOWN = 5  # unusable lines

Numbers = NDArray[np.uint64]


class NumberedLine(NamedTuple):
    number: int  # in the file, from 1
    line: BatchLine


class _Sortable(NamedTuple):
    group: int
    text: bytes  # see `PromptKey`
    request: NumberedLine


class BatchInput:
    """A checked file: `count` requests, in `lines` lines."""

    def __init__(self, path: Path, check_model: Callable[[str | None], str | None]) -> None:
        """`check_model` returns what is wrong with the model that a line asks for."""
        self.path = path
        found = _FirstReading(path, check_model)
        self.digest, self.lines = found.digest, found.lines
        self._numbers, self._offsets, self._ids = map(
            _as_numbers, (found.numbers, found.offsets, found.ids)
        )
        self.count = len(self._numbers)
        if not self.count:
            raise BadFile(f"{path} has no requests: give one per line")
        self._refuse_duplicates()
        self._groups = _by_appearance(_as_numbers(found.groups))

    def requests(self, done: bytearray) -> Iterator[NumberedLine]:
        """Those whose number is not marked in `done`: prompts that begin alike follow each
        other."""
        with self.path.open("rb") as file:
            window: list[_Sortable] = []
            size = 0
            for place in np.argsort(self._groups, kind="stable"):
                if done[self._numbers[place]]:
                    continue
                found = self._read(file, int(place))
                text = prompt_key(found.line).text
                window.append(_Sortable(int(self._groups[place]), text, found))
                size += 2 * len(text)
                if len(window) >= _WINDOW_LINES or size >= _WINDOW_BYTES:
                    yield from _sorted(window)
                    window, size = [], 0
            yield from _sorted(window)

    def _read(self, file: BinaryIO, place: int) -> NumberedLine:
        file.seek(int(self._offsets[place]))
        try:
            line = decode_line(file.readline(LONGEST_LINE))
        except UnusableLine:
            raise self._changed() from None
        if hash_of(line.custom_id.encode()) != self._ids[place]:
            raise self._changed()
        return NumberedLine(int(self._numbers[place]), line)

    def _changed(self) -> BadFile:
        return BadFile(
            f"{self.path} was changed while its requests were answered: begin anew with the whole "
            "file and another output"
        )

    def _refuse_duplicates(self) -> None:
        order = np.argsort(self._ids, kind="stable")
        ids = self._ids[order]
        (alike,) = np.nonzero(ids[1:] == ids[:-1])
        pairs = zip(order[alike], order[alike + 1], strict=True)
        found = []
        with self.path.open("rb") as file:
            for one, other in pairs:
                first, second = self._read(file, int(one)), self._read(file, int(other))
                if first.line.custom_id == second.line.custom_id:
                    found.append((second.number, first.number, first.line.custom_id))
        if found:
            found.sort()
            number, first_number, custom_id = found[0]
            more = "" if len(found) == 1 else f" ({len(found) - 1} more lines repeat one)"
            raise BadFile(
                f"{self.path}, line {number} has the custom_id {custom_id!r} of line "
                f"{first_number}{more}: answers are told apart by it, so give each its own"
            )


class _FirstReading:
    """What the whole file has been read for."""

    def __init__(self, path: Path, check_model: Callable[[str | None], str | None]) -> None:
        self.numbers, self.offsets = array("Q"), array("Q")
        self.ids, self.groups = array("Q"), array("Q")  # hashes
        self.lines = 0
        self._path, self._check_model = path, check_model
        self._unusable: list[str] = []
        self.digest = self._read()
        if self._unusable:
            what, *more = self._unusable
            rest = f"; {'; '.join(more)}" if more else ""
            raise BadFile(f"{path}, {what}{rest}. Nothing was answered: repair the file")

    def _read(self) -> str:
        whole, offset = sha256(), 0
        with self._path.open("rb") as file:
            while data := file.readline(LONGEST_LINE):
                self.lines += 1
                whole.update(data)
                if data.strip():
                    self._add(data, offset)
                if len(self._unusable) == _SHOWN:
                    break
                offset += len(data)
        return whole.hexdigest()

    def _add(self, data: bytes, offset: int) -> None:
        try:
            if len(data) == LONGEST_LINE:
                raise UnusableLine(f"it has more than {LONGEST_LINE >> 20} MiB")
            line = decode_line(data)
            key = prompt_key(line)
            if (wrong := self._check_model(key.model)) is not None:
                raise UnusableLine(wrong)
        except UnusableLine as error:
            self._unusable.append(f"line {self.lines}: {error}")
            return
        self.numbers.append(self.lines)
        self.offsets.append(offset)
        self.ids.append(hash_of(line.custom_id.encode()))
        self.groups.append(key.group)


def _as_numbers(numbers: array[int]) -> Numbers:
    return np.frombuffer(numbers, dtype=np.uint64) if numbers else np.zeros(0, dtype=np.uint64)


def _by_appearance(groups: Numbers) -> NDArray[np.int64]:
    """Of each line, where its group begins."""
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    return first[group].astype(np.int64)


def _sorted(window: list[_Sortable]) -> Iterator[NumberedLine]:
    """Leaves the window empty."""
    window.sort(key=lambda each: (each.group, each.text))
    while window:
        yield window.pop(0).request
