"""What to do about a model that was named as other programs name it: by its id on Hugging Face, or
by a file of a format that is not read here."""

from __future__ import annotations

import os
import re
from pathlib import Path

from moesaic.core.errors import ImpossibleSetting

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FILES = (".json", ".toml", ".gguf", ".safetensors", ".bin", ".pt", ".pth")  # no ids end so
_CONVERT = (
    "convert it with transformers, AutoModelForCausalLM.from_pretrained(FOLDER)"
    ".save_pretrained(NEW_FOLDER), and give the new folder"
)
# ending of a file -> what to do instead
_INSTEAD = {
    ".gguf": "GGUF is not read: give the folder of the model's safetensors files, which its page "
    "on Hugging Face names as the original",
    ".bin": f"PyTorch's pickled weights are not read: {_CONVERT}",
    ".pt": f"PyTorch's pickled weights are not read: {_CONVERT}",
    ".pth": f"PyTorch's pickled weights are not read: {_CONVERT}",
}


def is_hub_id(name: str) -> bool:
    """Whether this reads like `owner/model` and is no path that exists, or whose folder does."""
    path = Path(name)
    if not _HUB_ID.fullmatch(name) or path.suffix.lower() in _FILES:
        return False
    return not path.exists() and not path.parent.is_dir()


def how_to_fetch(hub_id: str) -> str:
    folder = hub_id.rpartition("/")[2]
    return (
        f"{hub_id!r} reads like an id on Hugging Face, and models are not fetched by id: run "
        f"`hf download {hub_id} --local-dir {folder}`, then give {folder}"
    )


def refuse_hub_id(model: str | os.PathLike[str] | None) -> None:
    if isinstance(model, str) and is_hub_id(model):
        raise ImpossibleSetting(how_to_fetch(model))


def instead_of(file: Path) -> str | None:
    """For a file with weights that cannot be opened by itself."""
    if file.name == "config.json" or file.suffix.lower() == ".safetensors":
        return f"is it {str(file.parent)!r}?"
    return _INSTEAD.get(file.suffix.lower())


def found_instead(folder: Path) -> str | None:
    """For a directory without safetensors files: what it has, and what to do with that."""
    there = sorted(folder.iterdir()) if folder.is_dir() else []
    weights = (file for file in there if file.suffix.lower() in _INSTEAD)
    return next((f"found {file.name}: {_INSTEAD[file.suffix.lower()]}" for file in weights), None)
