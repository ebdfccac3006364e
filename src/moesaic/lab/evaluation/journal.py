"""Results on disk while they come, and the settings they belong to: what a second call goes on
with. A line that was not written to its end is dropped."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from moesaic.core.errors import BadFile, FileError, ImpossibleSetting
from moesaic.core.files import whole_file
from moesaic.core.parsing import read_json
from moesaic.lab.evaluation.results import ItemResult, from_line

SETTINGS, RESULTS, SUMMARY = "settings.json", "results.jsonl", "summary.json"


class Journal:
    """The journal of one evaluation, in a folder of its own; `done` has what was found before."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], restart: bool = False) -> None:
        self.folder = folder
        self.done: dict[tuple[str, str], ItemResult] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._file = _locked(folder / RESULTS)
        try:
            self._begin(settings, restart)
        except BaseException:
            self._file.close()
            raise

    def add(self, result: ItemResult) -> None:
        try:
            self._file.write(f"{result.line()}\n".encode("utf-8", "surrogateescape"))
            self._file.flush()
        except OSError as error:  # which does not know the name
            raise OSError(error.errno, error.strerror, str(self.folder / RESULTS)) from None

    def finish(self, summary: Mapping[str, Any]) -> None:
        _write(self.folder / SUMMARY, summary)

    def close(self) -> None:
        with suppress(OSError):  # what could not be written was said before
            self._file.close()

    def _begin(self, settings: Mapping[str, Any], restart: bool) -> None:
        # As JSON has it: a tuple read again is a list.
        plain: dict[str, Any] = json.loads(json.dumps(settings))
        known = self.folder / SETTINGS
        if restart or not known.exists():
            self._file.truncate(0)
            (self.folder / SUMMARY).unlink(missing_ok=True)
            _write(known, plain)
            return
        _compare(_read(known), plain, self.folder)
        self._read_results()

    def _read_results(self) -> None:
        self._file.seek(0)
        *whole, _ = self._file.read().split(b"\n")  # not splitlines: answers have other breaks
        self._file.truncate(sum(len(line) + 1 for line in whole))
        for number, line in enumerate(whole, 1):
            try:
                result = from_line(line.decode("utf-8", "surrogateescape"))
            except (ValueError, RecursionError):
                raise BadFile(
                    f"{self.folder / RESULTS}, line {number} is no result: repair it, or begin "
                    "anew with --restart"
                ) from None
            self.done[result.key] = result


def _locked(path: Path) -> BinaryIO:
    file = path.open("a+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise ImpossibleSetting(
            f"another evaluation is writing to {str(path.parent)!r}: wait for it, or give another "
            "folder"
        ) from None
    return file


def _read(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path, FileError)
        if isinstance(found, dict):
            return found
    except FileError:
        pass
    raise BadFile(f"{path} is damaged: begin anew with --restart") from None


def _write(path: Path, content: Mapping[str, Any]) -> None:
    with whole_file(path) as stream:  # bytes: the system may not write text in UTF-8
        stream.write(json.dumps(content, indent=1).encode() + b"\n")


def _compare(before: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    different = [
        f"{name} was {json.dumps(before.get(name))} and is {json.dumps(now.get(name))}"
        for name in dict.fromkeys((*before, *now))
        if before.get(name) != now.get(name)
    ]
    if different:
        raise ImpossibleSetting(
            f"{str(folder)!r} has results of another evaluation ({'; '.join(different)}): give the "
            "same settings to go on, another folder, or --restart to begin anew"
        )
