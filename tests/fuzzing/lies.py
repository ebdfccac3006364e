"""Structure-aware fuzzing: files with valid headers and checksums whose contents lie.

Each lie is one change of a valid example, with random places and amounts. Those that the format
forbids must be refused; the others must be refused or read as what they say."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fuzzing.formats import Format

_NOTE = "lie"  # the file with the name of a forbidden change


class SilentlyRead(Exception):
    """A file was read that the format forbids, or as something else than it says."""


class Lie(NamedTuple):
    change: Callable[[Any, random.Random], object]  # of an example, in place
    allowed: bool = False  # by the format


def lying(
    example: Callable[[], Any],
    save: Callable[[Path, Any], object],
    lies: Mapping[str, Lie],
    read: Callable[[Path], object],
) -> Format:
    """`read` raises MoesaicError, or SilentlyRead where it finds something else than was saved."""

    def write(folder: Path, rng: random.Random) -> None:
        name, content = rng.choice(sorted(lies)), example()
        lies[name].change(content, rng)
        save(folder, content)
        if not lies[name].allowed:
            (folder / _NOTE).write_text(name)

    def checked(folder: Path) -> None:
        read(folder)
        if (folder / _NOTE).exists():
            raise SilentlyRead(f"{(folder / _NOTE).read_text()} was read without an error")

    return Format(write, checked)


def repeat_key(text: str, rng: random.Random) -> str:
    """One of the outermost keys of a JSON object once more, with another value."""
    key = rng.choice(sorted(json.loads(text)))
    return f"{text.rstrip()[:-1]}, {json.dumps(key)}: null}}"
