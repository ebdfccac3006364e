"""What tells one model from another of the same name, without reading all its weights."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from moesaic.model_info.gguf.files import part_files
from moesaic.model_info.model_files import SMALL_FILES
from moesaic.model_info.packed.header import EXPERTS

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

_PIECE = 1 << 16  # bytes
_WHOLE = 1 << 26  # small files are read whole


def model_digest(model: Path) -> str:
    """Of the names and sizes of its files, of small files whole, and of the beginning, the middle
    and the end of those with weights. `model`: a folder, or a GGUF file."""
    digest = sha256()
    if not model.is_dir():
        for place, part in enumerate(part_files(model)):
            _add_weights(digest, f"part {place}", part)
        return digest.hexdigest()
    for path in sorted(model.iterdir()):
        if path.name in SMALL_FILES or path.name.endswith(".safetensors.index.json"):
            digest.update(_head(path.name, path.stat().st_size))
            with path.open("rb") as file:
                digest.update(file.read(_WHOLE))
        elif path.suffix == ".safetensors" or path.name == EXPERTS:
            _add_weights(digest, path.name, path)
    return digest.hexdigest()


def _add_weights(digest: Hash, name: str, path: Path) -> None:
    size = path.stat().st_size
    digest.update(_head(name, size))
    with path.open("rb") as file:
        for place in (0, size // 2, max(0, size - _PIECE)):
            file.seek(place)
            digest.update(file.read(_PIECE))


def _head(name: str, size: int) -> bytes:
    return f"{name}\0{size}\0".encode(errors="surrogateescape")
