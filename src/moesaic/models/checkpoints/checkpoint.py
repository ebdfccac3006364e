"""A model directory's tensors by name, whichever of its safetensors files they are in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from moesaic.core.errors import BadCheckpoint
from moesaic.core.files import has_regular_file
from moesaic.core.parsing import read_json
from moesaic.model_info.model_names import found_instead
from moesaic.model_info.text_config import text_name
from moesaic.models.checkpoints.safetensors_header import TensorEntry
from moesaic.models.checkpoints.shard import DTYPES, Shard

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_LONGEST_NAME = 255  # bytes, of file systems


class Checkpoint:
    """Opening reads all tables of contents and no weights: what is missing or cut off is found
    before anything is loaded."""

    described_by = "config.json"

    def __init__(self, folder: Path) -> None:
        self._source, files, placed = _files(folder)
        self._shards: dict[str, Shard] = {}
        self._expected: set[str] = set()
        for file in files:
            shard = Shard(file)
            for name in shard.entries:
                if self._shards.setdefault(name, shard) is not shard:
                    other = self._shards[name].path.name
                    raise BadCheckpoint(file, name, f"is in {other} too; expected it only once")
        self._check_places(placed)

    def __contains__(self, name: object) -> bool:
        return name in self._shards

    def expect(self, name: str, shape: Sequence[int]) -> None:
        """The tensor is there, of this shape, in a precision we read; or BadCheckpoint."""
        self.expect_part(name, shape, tuple(DTYPES))

    def expect_part(self, name: str, shape: Sequence[int], dtypes: Sequence[str]) -> None:
        """The same for one of the tensors a quantized matrix is stored as."""
        self._expected.add(name)
        shard, entry = self._find(name)
        one = tuple(shape) == (1,)  # number: it may be stored without a dimension
        if entry.shape != tuple(shape) and not (one and entry.shape == ()):
            what = f"expected shape {list(shape)}, found {list(entry.shape)}"
            raise BadCheckpoint(shard.path, name, what)
        if entry.dtype not in dtypes:
            what = f"stored as {entry.dtype}; expected {', '.join(dtypes)}"
            raise BadCheckpoint(shard.path, name, what)

    def read(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        self.expect(name, shape)
        return self._shards[name].read(name)

    def read_part(self, name: str, shape: Sequence[int], index: int) -> torch.Tensor:
        """One of the tensors a stack of this shape consists of; only its bytes are read."""
        self.expect(name, shape)
        return self._shards[name].read(name, index)

    def read_stored(self, name: str, index: int | None = None) -> torch.Tensor:
        """A part that was expected, or one of a stack, as it is stored."""
        return self._shards[name].read(name, index)

    def unread(self) -> list[str]:
        """The tensors not read so far, in the order of the files."""
        return [name for name in self._shards if name not in self._expected]

    def block_formats(self) -> tuple[str, ...]:
        return ()

    def file_of(self, name: str) -> Path:
        return self._shards[name].path

    def _check_places(self, placed: Mapping[str, str]) -> None:
        """An index that places a tensor in another file was made for other files. One that names
        a tensor which no file has is harmless: where the tensor is needed, it is missing."""
        for name, file in placed.items():
            shard = self._shards.get(text_name(name))
            if shard is not None and shard.path.name != file:
                what = f"is placed in {file}, but {shard.path.name} has it: the index and the files"
                raise BadCheckpoint(self._source, name, f"{what} do not belong together")

    def _find(self, name: str) -> tuple[Shard, TensorEntry]:
        if name not in self._shards:
            raise BadCheckpoint(self._source, name, "the tensor is missing")
        shard = self._shards[name]
        return shard, shard.entries[name]


def weight_files(folder: Path) -> tuple[Path, list[Path]]:
    """The file a missing tensor is blamed on, and all files with weights."""
    source, files, _ = _files(folder)
    return source, files


def _files(folder: Path) -> tuple[Path, list[Path], dict[str, str]]:
    """What `weight_files` returns, and the file that the index places each tensor in."""
    index, single = folder / _INDEX, folder / _SINGLE
    if has_regular_file(index, BadCheckpoint):
        placed = _index(index)
        return index, _indexed(folder, placed), placed
    if has_regular_file(single, BadCheckpoint):
        return single, [single], {}
    instead = found_instead(folder)
    found = "" if instead is None else f"; {instead}"
    raise BadCheckpoint(folder, "file", f"expected {_SINGLE} or {_INDEX}{found}")


def _index(index: Path) -> dict[str, str]:
    content = read_json(index, BadCheckpoint)
    files = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(files, dict) or not all(_is_file_name(name) for name in files.values()):
        raise BadCheckpoint(index, "weight_map", "expected file names by tensor name")
    return files


def _indexed(folder: Path, placed: Mapping[str, str]) -> list[Path]:
    counts = Counter(placed.values())
    names = sorted(counts)
    for name in names:
        if not has_regular_file(folder / name, BadCheckpoint):
            what = f"the file is missing; {_INDEX} places {counts[name]} tensors in it"
            raise BadCheckpoint(folder / name, "file", what)
    return [folder / name for name in names]


def _is_file_name(name: object) -> bool:
    """Whether this names a file in the same folder: other folders are not part of the model."""
    if not isinstance(name, str) or name in ("", ".", "..") or set(name) & {"/", "\0"}:
        return False
    return len(name.encode()) <= _LONGEST_NAME
