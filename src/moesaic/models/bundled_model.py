"""The trained model that comes with the package: what runs where no model is named.

Knows its name and its directory, nothing of tensors: naming it must not import torch.
"""

from __future__ import annotations

import os
from pathlib import Path

from moesaic.core.errors import BadCheckpoint

NAME = "moesaic-20m"

_FOLDER = Path(__file__).parent / "data" / NAME
_FILES = ("config.json", "model.safetensors", "tokenizer.json")


def default_model() -> Path:
    """Its directory, in Hugging Face layout. An installation may have been stripped of it."""
    for name in _FILES:
        if not (_FOLDER / name).is_file():
            raise BadCheckpoint(
                _FOLDER,
                name,
                f"is missing, and with it the model of the package, {NAME}: install the package "
                "again, or name a model directory of your own",
            )
    return _FOLDER


def is_bundled(folder: Path) -> bool:
    """Whether this is its directory, however it was named."""
    return folder.resolve() == _FOLDER.resolve()


def model_path(model: str | os.PathLike[str] | None) -> Path:
    """The path of a model that was named by its directory or as the package's own, or not at all.

    The name wins over a directory of the same name; write ./NAME for the directory."""
    if model is None or (isinstance(model, str) and model.lower() == NAME):
        return default_model()
    return Path(model)
