"""A model directory's files as a whole: which model they are, and the config of a copy."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

from moesaic.core.errors import BadConfig
from moesaic.core.parsing import read_json
from moesaic.model_info.model_files import CONFIG, SMALL_FILES
from moesaic.models.checkpoints.checkpoint import weight_files
from moesaic.models.checkpoints.safetensors_header import contents_digest

_OF_THE_FILES = "quantization_config"  # says how the weights are stored, which a copy changes


def fingerprint(folder: Path) -> str:
    """A digest of the small files' content, and of the weights' names, shapes, places and sizes."""
    whole = sha256()
    for name in SMALL_FILES:
        if (folder / name).is_file():
            whole.update(f"{name}\n".encode() + sha256((folder / name).read_bytes()).digest())
    for file in sorted(weight_files(folder)[1]):
        line = f"{file.name} {file.stat().st_size} {contents_digest(file)}\n"
        whole.update(line.encode())
    return whole.hexdigest()


def write_config(folder: Path, copy: Path) -> None:
    """The config for weights that are stored as plain numbers."""
    content = read_json(folder / CONFIG, BadConfig)
    if isinstance(content, dict) and _OF_THE_FILES in content:
        del content[_OF_THE_FILES]
        (copy / CONFIG).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
