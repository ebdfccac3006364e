"""Reads hostile files: `make fuzz`, or with options
`PYTHONPATH=tests python -m fuzzing.fuzz --files 10000`.

Every file is a valid one, mutated by a generator whose seed is the format and a number, so that a
failure can be made again. A failure is an exception that is no MoesaicError, a file that takes
longer than `--seconds`, or a lie that is read without an error: formats called `lying-...` have
valid headers, and contents that the format forbids."""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from fuzzing.formats import Format
from fuzzing.formats import formats as mutated_formats
from fuzzing.lying_tensors import INDEXES, TENSORS
from fuzzing.lying_tokenizers import TOKENIZERS
from fuzzing.lying_traces import NPZ, TRACES
from moesaic.core.errors import MoesaicError

SLOWEST_S = 5.0
LIES = {
    "lying-tensors": TENSORS,
    "lying-index": INDEXES,
    "lying-tokenizer": TOKENIZERS,
    "lying-trace": TRACES,
    "lying-npz": NPZ,
}


def formats() -> dict[str, Format]:
    return mutated_formats() | LIES


class Failure(NamedTuple):
    format: str
    number: int
    what: str


class Outcome(NamedTuple):
    files: int
    read: int  # without an error: the mutation did no harm
    slowest_s: float
    failures: list[Failure]


def fuzz(name: str, numbers: range, slowest_s: float = SLOWEST_S) -> Outcome:
    """These files of one format."""
    read, slowest, failures = 0, 0.0, []
    for number in numbers:
        begin = time.perf_counter()
        what = _one(formats()[name], name, number)
        took = time.perf_counter() - begin
        slowest = max(slowest, took)
        if took > slowest_s:
            what = f"took {took:.1f} s"
        read += what is None
        if what:
            failures.append(Failure(name, number, what))
    return Outcome(len(numbers), read, slowest, failures)


def write_example(name: str, number: int, folder: Path) -> None:
    formats()[name].write(folder, random.Random(f"{name} {number}"))


def _one(made: Format, name: str, number: int) -> str | None:
    """None if the file was read, "" if it was refused, else what escaped."""
    with tempfile.TemporaryDirectory(prefix="moesaic-fuzz-") as place:
        folder = Path(place)
        made.write(folder, random.Random(f"{name} {number}"))
        try:
            made.read(folder)
        except MoesaicError as error:
            return _complaint_about(error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # panics are no Exceptions
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(last.filename).name}:{last.lineno}"
            return f"{type(error).__name__} at {where}: {str(error)[:200]}"
        return None


def _complaint_about(error: MoesaicError) -> str:
    """A message must be one that a terminal can show."""
    said = str(error)
    if len(said) > 10_000:
        return f"a message of {len(said)} characters"
    try:
        said.encode()
    except UnicodeEncodeError:
        return f"a message that cannot be encoded: {said!r:.200}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000, help="of each format")
    parser.add_argument("--first", type=int, default=0, help="number of the first file")
    parser.add_argument("--format", action="append", choices=list(formats()), help="only these")
    parser.add_argument("--keep", type=Path, help="folder for the files that failed")
    parser.add_argument("--seconds", type=float, default=SLOWEST_S, help="a file may take")
    asked = parser.parse_args()
    failures: list[Failure] = []
    for name in asked.format or formats():
        begin = time.perf_counter()
        found = fuzz(name, range(asked.first, asked.first + asked.files), asked.seconds)
        failures += found.failures
        print(
            f"{name:15} {found.files} files, {found.read} read, "
            f"{len(found.failures)} failures, slowest {found.slowest_s:.2f} s, "
            f"{time.perf_counter() - begin:.0f} s",
            flush=True,
        )
    _report(failures, asked.keep)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory {peak:.0f} MiB; {len(failures)} failures")
    return 1 if failures else 0


def _report(failures: list[Failure], keep: Path | None) -> None:
    for (name, what), count in Counter((f.format, f.what) for f in failures).most_common(50):
        number = next(f.number for f in failures if (f.format, f.what) == (name, what))
        print(f"  {count} x {name}, first {number}: {what}")
    for failure in failures if keep is not None else ():
        assert keep is not None
        folder = keep / f"{failure.format}-{failure.number}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_example(failure.format, failure.number, folder)


if __name__ == "__main__":
    sys.exit(main())
