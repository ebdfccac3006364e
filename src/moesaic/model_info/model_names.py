"""What to do about a model's name that leads nowhere: a file of a format that is not read here, a
file that is missing, an id without its owner, a misspelled name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from moesaic.core.errors import MoesaicError, UnknownName

_CONVERT = (
    "convert it with transformers, AutoModelForCausalLM.from_pretrained(FOLDER)"
    ".save_pretrained(NEW_FOLDER), and give the new folder"
)
# ending of a file -> what to do instead
_INSTEAD = {
    ".gguf": "a GGUF file is opened by its own name: give that instead of its folder",
    ".bin": f"PyTorch's pickled weights are not read: {_CONVERT}",
    ".pt": f"PyTorch's pickled weights are not read: {_CONVERT}",
    ".pth": f"PyTorch's pickled weights are not read: {_CONVERT}",
}


def instead_of(file: Path) -> str | None:
    """What to give instead of a file with weights that cannot be opened by itself."""
    if file.name == "config.json" or file.suffix.lower() == ".safetensors":
        return f"is it {str(file.parent)!r}?"
    return _INSTEAD.get(file.suffix.lower())


def found_instead(folder: Path) -> str | None:
    """What a directory without safetensors files has, and what to do with that."""
    there = sorted(folder.iterdir()) if folder.is_dir() else []
    weights = (file for file in there if file.suffix.lower() in _INSTEAD)
    return next((f"found {file.name}: {_INSTEAD[file.suffix.lower()]}" for file in weights), None)


# how the names of a publisher's models begin -> the publisher's name on Hugging Face
_OWNERS = {
    "qwen": "Qwen",
    "mixtral": "mistralai",
    "olmoe": "allenai",
    "gpt-oss": "openai",
    "deepseek": "deepseek-ai",
    "kimi": "moonshotai",
    "glm": "zai-org",
    "granite": "ibm-granite",
    "dots": "rednote-hilab",
}
_ID_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_NEAR = 0.75  # of difflib's ratio
_LISTED = 5


class UnknownModel(UnknownName):
    """Other than for options, the nearest of all names may be another model."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name, names = name, sorted(known)
        self.nearest = _misspelled(name, names)
        owner = needs_owner(name)
        meant = "" if self.nearest is None else f" Did you mean {self.nearest!r}?"
        id_ = "" if owner is None else f" {owner[0].upper()}{owner[1:]}; or give a folder."
        message = f"unknown model {name!r}.{meant}{id_} Known: {', '.join(names)}."
        MoesaicError.__init__(self, message)


def missing_gguf(name: str) -> str | None:
    """What is in the folder of a GGUF file that does not exist."""
    path = Path(name)
    if path.suffix.lower() != ".gguf":
        return None
    folder = path.parent
    if not folder.is_dir():
        return f"there is no file {name!r}: there is no folder {str(folder)!r}"
    others = sorted(each.name for each in folder.iterdir() if each.suffix.lower() == ".gguf")
    more = f" and {len(others) - _LISTED} more" if len(others) > _LISTED else ""
    found = f"has {', '.join(others[:_LISTED])}{more}" if others else "has no .gguf files"
    where = "this folder" if folder == Path() else f"the folder {str(folder)!r}"
    return f"there is no file {name!r}; {where} {found}"


def needs_owner(name: str) -> str | None:
    """What to give where the name may be the second half of an id on Hugging Face."""
    if _ID_NAME.fullmatch(name) is None or name.endswith("."):
        return None
    owners = (owner for start, owner in _OWNERS.items() if name.lower().startswith(start))
    owner = next(owners, "OWNER")
    return f"an id on Hugging Face needs its owner, as in {owner}/{name}"


def _misspelled(name: str, names: list[str]) -> str | None:
    """The known model that was meant: the name is the beginning of one alone, or has the same
    numbers. One with other numbers is another model."""
    asked = name.lower()
    begin = [each for each in names if each.startswith(asked)]
    same = [each for each in names if _NUMBER.findall(each) == _NUMBER.findall(asked)]
    near = begin if len(begin) == 1 else get_close_matches(asked, same, n=1, cutoff=_NEAR)
    return near[0] if near else None
