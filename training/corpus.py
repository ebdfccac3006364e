"""English prose from `*.jsonl.xz` files, one document per line, tidied for a small vocabulary."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterator
from pathlib import Path

from moesaic.core.errors import ImpossibleSetting

HELD_OUT_EVERY = 50  # documents of each file: every 50th is never trained on

_PLAIN = str.maketrans(
    {"“": '"', "”": '"', "‘": "'", "’": "'", "—": "--", "–": "-", "…": "...", "\u00a0": " "}
)
_MARKS = re.compile(r"\*+|_+|^#+ *", re.M)
_BLANK_LINES = re.compile(r"\n{3,}")


def tidy(text: str) -> str:
    """Typewriter quotes and dashes, no emphasis marks: tokens are spent on words."""
    plain = _MARKS.sub("", text.translate(_PLAIN))
    return _BLANK_LINES.sub("\n\n", plain).strip()


def documents(folder: Path, held_out: bool) -> Iterator[str]:
    """The texts of every file in the folder, those for training or those kept from it."""
    files = sorted(folder.glob("*.jsonl.xz"))
    if not files:
        raise ImpossibleSetting(f"no *.jsonl.xz in {str(folder)!r}: give the corpus' folder.")
    for file in files:
        yield from _of_file(file, held_out)


def _of_file(file: Path, held_out: bool) -> Iterator[str]:
    try:
        with lzma.open(file, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines):
                if (number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1) == held_out:
                    yield tidy(json.loads(line)["text"])
    except (OSError, lzma.LZMAError, EOFError, ValueError, KeyError, TypeError) as error:
        raise ImpossibleSetting(
            f"{str(file)!r} is no corpus file (compressed lines of JSON with a text): {error!r}."
        ) from None
