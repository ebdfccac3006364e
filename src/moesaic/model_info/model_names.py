"""What to do about a model that was named by a file of a format that is not read here."""

from __future__ import annotations

from pathlib import Path

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
    """For a file with weights that cannot be opened by itself."""
    if file.name == "config.json" or file.suffix.lower() == ".safetensors":
        return f"is it {str(file.parent)!r}?"
    return _INSTEAD.get(file.suffix.lower())


def found_instead(folder: Path) -> str | None:
    """For a directory without safetensors files: what it has, and what to do with that."""
    there = sorted(folder.iterdir()) if folder.is_dir() else []
    weights = (file for file in there if file.suffix.lower() in _INSTEAD)
    return next((f"found {file.name}: {_INSTEAD[file.suffix.lower()]}" for file in weights), None)
