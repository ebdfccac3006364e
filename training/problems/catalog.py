"""All templates, in a fixed order: the text files in data/, one folder per kind.

A file called held_out.txt has the templates that training leaves out.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from training.problems.reader import read
from training.problems.template import Template

KINDS = ("word", "passage", "list", "date", "comparison")


@cache
def templates() -> tuple[Template, ...]:
    data = files("training.problems") / "data"
    found: list[Template] = []
    for kind in KINDS:
        for file in sorted((data / kind).iterdir(), key=lambda file: file.name):
            text = file.read_text(encoding="ascii")
            found += read(text, kind, held_out=file.name == "held_out.txt")
    ids = [template.id for template in found]
    assert len(set(ids)) == len(ids), "two templates share a name"
    return tuple(found)
