"""What can go wrong because of what the user asked.

Every message says what was asked, what is possible and what to do; the command line prints it
without a traceback and exits with status 2. Invariants of our own use `assert` instead.

    MoesaicError
    ├── UnknownName          a name that is not registered, with the nearest match
    ├── BadConfig            a model's config.json cannot be read or is not a supported MoE
    ├── BadCheckpoint        a model's weights are missing, truncated, misshapen or not runnable
    ├── BadMachine           a machine description is malformed
    ├── BadTrace             a routing trace is malformed, truncated or of another model
    ├── ImpossibleSetting    settings that no machine could satisfy
    ├── IllegalPlan          a policy returned a plan that no machine may execute
    └── MissingExtra         an optional package is needed
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class MoesaicError(Exception):
    """Base of everything a user can cause; `str(error)` is the whole message."""


class UnknownName(MoesaicError):
    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = get_close_matches(name.lower(), names, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        super().__init__(f"unknown {kind} {name!r}.{hint} Known: {', '.join(names)}.")
        self.name = name
        self.nearest = near[0] if near else None


class FileError(MoesaicError):
    """A file's content is not what it should be: names the file, the field and the expectation."""

    kind = "file"

    def __init__(self, path: object, field: str, expected: str) -> None:
        super().__init__(f"{self.kind} {str(path)!r}: {field}: {expected}")
        self.path = path
        self.field = field


class BadConfig(FileError):
    kind = "model config"


class BadCheckpoint(FileError):
    kind = "checkpoint"


class BadMachine(FileError):
    kind = "machine description"


class BadTrace(FileError):
    kind = "routing trace"


class ImpossibleSetting(MoesaicError):
    pass


class IllegalPlan(MoesaicError):
    pass


class MissingExtra(MoesaicError):
    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs an optional package: install it with pip install 'moesaic[{extra}]'."
        )
