"""Output files of commands: refused before any work where they could not be written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from moesaic.core.errors import ImpossibleSetting, MissingExtra
from moesaic.core.files import refuse_special

PICTURES = (".png", ".svg", ".pdf")
TRACES = (".json",)
ROUTING = ".moet"


def check_picture(option: str, path: str | None) -> None:
    if path is None:
        return
    check_file(option, path, PICTURES)
    if find_spec("matplotlib") is None:
        raise MissingExtra(f"{option}, a picture,", "plot")


def check_pictures_folder(option: str, path: str | None) -> None:
    """A folder for several pictures; it must exist."""
    if path is None:
        return
    if not Path(path).is_dir():
        raise ImpossibleSetting(f"{option} {path!r} is no directory: create it first")
    check_picture(option, str(Path(path) / "picture.svg"))


def check_file(option: str, path: str | None, endings: Sequence[str]) -> None:
    if path is None:
        return
    if Path(path).suffix.lower() not in endings:
        raise ImpossibleSetting(f"{option} {path!r}: the name must end in {' or '.join(endings)}")
    check_writable(option, path)


def check_routing(option: str, path: str) -> None:
    """A name of our choice or none, but not that of another format."""
    if Path(path).suffix.lower() == ".npz":
        raise ImpossibleSetting(
            f"{option} {path!r}: traces are written as {ROUTING}: give a name that ends in it"
        )
    check_writable(option, path)


def check_writable(option: str, path: str) -> None:
    target = Path(path)
    refuse_special(path, option)
    if not target.parent.is_dir():
        raise ImpossibleSetting(
            f"{option} {path!r}: there is no directory {str(target.parent)!r}: create it first"
        )
    if not os.access(target.parent, os.W_OK):
        raise ImpossibleSetting(f"{option} {path!r}: {str(target.parent)!r} is not writable")
