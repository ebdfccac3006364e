"""The file of answers, which only grows by whole lines, and the journal beside it that says what
they are answers to.

A line is appended with one write. Whatever ends the process, the file has whole lines and at most
one piece of a line at its end, which the next call cuts off. The `id` of an answer names the
request's line and the input, so the file itself says what is done."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from moesaic.core.errors import BadFile, FileError, ImpossibleSetting
from moesaic.core.files import refuse_special, whole_file
from moesaic.core.parsing import read_json
from moesaic.serve.batch.batch_input import BatchInput

JOURNAL = ".journal"  # behind the name of the output
_ID = "batch_req_"
_SYNC_S = 5.0  # between two times that answers are brought to the disk
_TAIL = 1 << 16  # bytes


class _Answered(msgspec.Struct):
    id: str


class BatchOutput:
    """`done` marks requests that have an answer, by the numbers of their lines."""

    def __init__(
        self, path: Path, source: BatchInput, settings: Mapping[str, Any], restart: bool = False
    ) -> None:
        """`settings`: what answers depend on, as JSON has it."""
        self.path, self.journal = path, path.with_name(path.name + JOURNAL)
        self._prefix = f"{_ID}{source.digest[:16]}_"
        self.done = bytearray(source.lines + 1)
        self._synced_at = monotonic()
        refuse_special(path, "-o")
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._lock()
            self._begin({"input_sha256": source.digest, **settings}, restart)
            self._size = os.fstat(self._file).st_size
        except BaseException:
            os.close(self._file)
            raise

    @property
    def count(self) -> int:
        return self.done.count(1)

    def id_of(self, number: int) -> str:
        return f"{self._prefix}{number}"

    def add(self, number: int, answer: bytes) -> None:
        """`answer`: a JSON object whose id is `id_of(number)`."""
        left = memoryview(answer + b"\n")
        try:
            while left:
                left = left[os.write(self._file, left) :]
            if monotonic() - self._synced_at >= _SYNC_S:
                os.fsync(self._file)
                self._synced_at = monotonic()
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise OSError(error.errno, error.strerror, str(self.path)) from None
        self._size += len(answer) + 1
        self.done[number] = 1

    def close(self) -> None:
        try:
            os.fsync(self._file)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None
        finally:
            os.close(self._file)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ImpossibleSetting(
                f"another batch is writing to {str(self.path)!r}: wait for it, or give another "
                "output"
            ) from None

    def _begin(self, asked: Mapping[str, Any], restart: bool) -> None:
        if restart:
            os.ftruncate(self._file, 0)
        size = os.fstat(self._file).st_size
        if size and not self.journal.exists():
            raise ImpossibleSetting(
                f"{str(self.path)!r} has something else than answers of a batch (there is no "
                f"{self.journal.name!r} beside it): give another output, or --restart to replace it"
            )
        if size:
            _compare(self._read_journal(), asked, self.path)
            self._repair(size)
            self._read_done()
        else:
            with whole_file(self.journal) as stream:
                stream.write(json.dumps(asked, indent=1).encode() + b"\n")

    def _read_journal(self) -> dict[str, Any]:
        with suppress(FileError):
            found = read_json(self.journal, FileError)
            if isinstance(found, dict):
                return found
        raise BadFile(
            f"{self.journal} is damaged, so it is not known what {self.path} has answers to: give "
            "another output, or --restart to begin anew"
        )

    def _repair(self, size: int) -> None:
        """Cut off what follows the last line end."""
        end = size
        while end:
            first = max(0, end - _TAIL)
            piece = os.pread(self._file, end - first, first)
            if (found := piece.rfind(b"\n")) >= 0:
                end = first + found + 1
                break
            end = first
        if end < size:
            os.ftruncate(self._file, end)

    def _read_done(self) -> None:
        with self.path.open("rb") as file:
            for place, line in enumerate(file, 1):
                number = self._number_of(line)
                if number is None:
                    raise BadFile(
                        f"{self.path}, line {place} is no answer of this batch: remove the line, "
                        "and its request is answered again, or begin anew with --restart"
                    )
                self.done[number] = 1

    def _number_of(self, line: bytes) -> int | None:
        try:
            answered = msgspec.json.decode(line, type=_Answered).id
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        number = answered.removeprefix(self._prefix)
        if number == answered or not (number.isascii() and number.isdecimal()):
            return None
        return int(number) if 0 < int(number) < len(self.done) else None


def _compare(before: Mapping[str, Any], now: Mapping[str, Any], path: Path) -> None:
    if before.get("input_sha256") != now["input_sha256"]:
        raise ImpossibleSetting(
            f"{str(path)!r} has answers to another input (or this one was changed since): give "
            "another output, or --restart to replace them"
        )
    different = [
        f"{name} was {json.dumps(before.get(name))} and is {json.dumps(now.get(name))}"
        for name in dict.fromkeys((*before, *now))
        if before.get(name) != now.get(name)
    ]
    if different:
        raise ImpossibleSetting(
            f"{str(path)!r} has answers of another run ({'; '.join(different)}): give the same "
            "options to go on, another output, or --restart to begin anew"
        )
