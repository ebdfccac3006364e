"""What can go wrong, by kind: what was asked for is impossible, a file is bad, the model is broken,
or the engine failed. Each kind says who can do something about it.

Every message says what was asked, what is possible and what to do; the command line prints it
without a traceback and exits with the kind's status (cli/shared/exit_status.py). Invariants of our
own use `assert` instead.

    MoesaicError
    ├── ImpossibleRequest        what was asked for is impossible here: ask for something else
    │   ├── UnknownName          a name that is not registered, with the nearest match
    │   ├── ImpossibleSetting    settings that no machine, or not this one, could satisfy
    │   ├── MissingExtra         an optional package is needed
    │   ├── CannotFetch          a model named by its id cannot be fetched from the hub
    │   ├── BadPolicy            a policy of the user's own that does not keep its contract
    │   ├── Overloaded           too many requests wait: ask again later
    │   ├── WorkerEnded          a process that worked on it has ended, as for lack of memory
    │   └── StuckGrammar         a text cannot go on as its grammar demands (FailedRows, too)
    ├── BadFile                  a file is not what it should be: repair it, or give another
    │   └── FileError            the same with the file, the field and what was expected
    │       ├── BadConfig        a model's config.json cannot be read or is not a supported MoE
    │       ├── BadCheckpoint    a model's weights are missing, truncated, misshapen, not runnable
    │       ├── BadTokenizer     a model's tokenizer files are missing, malformed or of another
    │       ├── BadMachine       a machine description is malformed
    │       ├── BadTrace         a routing trace is malformed, truncated or of another model
    │       ├── BadPlacement     a file of learned expert uses is malformed or of another model
    │       └── BadPlugin        a plugin cannot be imported, or registers what is no policy
    ├── ModelFault               the model is broken, though its files can be read: get it anew
    │   ├── BrokenWeights        weights that are no numbers, where numbers are needed
    │   └── BrokenModel          a model computed NaN or infinity, no logits (FailedRows, too)
    ├── EngineFailed             the engine, its kernels or a device failed: report it
    │   ├── EngineEnded          the engine's process has ended: killed, crashed or without progress
    │   └── IllegalPlan          a policy returned a plan that no machine may execute
    └── FailedRows               some sequences of a batch failed, and the error says which
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

_LONGEST = 2000  # characters of one part of a message


class MoesaicError(Exception):
    """Base of everything a user can cause; `str(error)` is the whole message."""


class ImpossibleRequest(MoesaicError):
    """What was asked for cannot be had, at all or here."""


class BadFile(MoesaicError):
    """A file was read, and is not what it should be."""


class ModelFault(MoesaicError):
    """The model is broken: its files are whole, and what is in them cannot be computed with."""


class EngineFailed(MoesaicError):
    """What was asked for is possible, and was not done. `REPORT` says what to do about it."""


REPORT = (
    "This should not happen. Please report it with the command or program that was run, this "
    "message and the output of `moesaic doctor`."
)


class UnknownName(ImpossibleRequest):
    """`problems` are reasons why further names may be missing."""

    def __init__(
        self, kind: str, name: str, known: Iterable[str], problems: Iterable[str] = ()
    ) -> None:
        names = sorted(known)
        near = get_close_matches(name.lower(), names, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        more = "".join(f" Not loaded: {problem}." for problem in problems)
        super().__init__(f"unknown {kind} {name!r}.{hint} Known: {', '.join(names)}.{more}")
        self.name = name
        self.nearest = near[0] if near else None


def printable(text: str) -> str:
    """Names and values from files, for a terminal: control characters and halves of surrogate
    pairs escaped, what would fill the screen cut."""
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


class FileError(BadFile):
    """A file's content is not what it should be: names the file, the field and the expectation."""

    kind = "file"

    def __init__(self, path: object, field: str, expected: str) -> None:
        field, expected = printable(field), printable(expected)
        super().__init__(f"{self.kind} {str(path)!r}: {field}: {expected}")
        self.path = path
        self.field = field


class BadConfig(FileError):
    kind = "model config"


class BadCheckpoint(FileError):
    kind = "checkpoint"


class BadTokenizer(FileError):
    kind = "tokenizer"


class BadMachine(FileError):
    kind = "machine description"


class BadTrace(FileError):
    kind = "routing trace"


class BadPlacement(FileError):
    kind = "placement"


class BadPlugin(FileError):
    kind = "plugin"


class BadPolicy(ImpossibleRequest):
    pass


class Overloaded(ImpossibleRequest):
    """Too many requests wait already."""


class WorkerEnded(ImpossibleRequest):
    pass


class CannotFetch(ImpossibleRequest):
    pass


class ImpossibleSetting(ImpossibleRequest):
    pass


class EngineEnded(EngineFailed):
    pass


class IllegalPlan(EngineFailed):
    pass


class FailedRows(MoesaicError):
    """`rows` are those of the batch that failed; the others can go on."""

    def __init__(self, rows: Iterable[int], message: str) -> None:
        self.rows = tuple(rows)
        super().__init__(message)


class BrokenWeights(ModelFault):
    pass


class BrokenModel(FailedRows, ModelFault):
    def __init__(self, rows: Iterable[int], batch: int) -> None:
        broken = tuple(rows)
        super().__init__(
            broken,
            f"the model computed NaN or infinite logits for {len(broken)} of {batch} sequences, "
            "so there is no next token to choose: its weights are damaged or overflow in this "
            "precision; compare the files with their source, or run it in bf16 or fp32.",
        )


class StuckGrammar(FailedRows, ImpossibleRequest):
    def __init__(self, failed: Mapping[int, str | None]) -> None:
        why = next(iter(failed.values()))
        super().__init__(failed, f"the text cannot go on as its grammar demands: {why}")


class MissingExtra(ImpossibleRequest):
    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs an optional package: install it with pip install 'moesaic[{extra}]'."
        )
