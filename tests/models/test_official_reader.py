"""Is every safetensors file refused that the format's own reader refuses?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError, safe_open

from moesaic.core.errors import BadCheckpoint
from moesaic.models.checkpoints.shard import Shard

NAMES = ("a", "b", "c")


def entry(start: int, end: int, **other: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2, 3], "data_offsets": [start, end]} | other


def header(**changed: Any) -> dict[str, Any]:
    """Three tensors [2, 3] of 24 bytes, one after another."""
    return {name: entry(24 * i, 24 * i + 24) for i, name in enumerate(NAMES)} | changed


def repeated(name: str, fields: dict[str, Any]) -> str:
    """A table that has `name` twice."""
    return json.dumps(header())[:-1] + f", {json.dumps(name)}: {json.dumps(fields)}" + "}"


EMPTY = entry(24, 24, shape=[0, 3])
REFUSED: dict[str, tuple[object, int, str]] = {
    "overlap": (header(b=entry(12, 36)), 72, "b: its data overlaps that of a"),
    "same bytes": (header(b=entry(0, 24)), 72, "overlaps"),
    "same bytes at the end": (header(c=entry(24, 48)), 48, "overlaps"),
    "gap": (header(c=entry(52, 76)), 76, "4 bytes between b and this tensor belong to no tensor"),
    "gap at the start": (header(a=entry(72, 96)), 96, "24 bytes between the header and this"),
    "trailing": (header(), 73, "1 bytes after c belong to no tensor: expected"),
    "nothing but data": ({}, 4, "4 bytes after the header belong to no tensor"),
    "truncated": (header(), 71, "truncated: expected"),
    "an empty tensor inside another": (header(d=entry(30, 30, shape=[0])), 72, "overlaps"),
    "another dtype": (header(a=entry(0, 24, dtype="F16")), 72, "F16 [2, 3] takes 12 bytes"),
    "an unknown dtype": (header(a=entry(0, 24, dtype="Q4")), 72, "not 'Q4'"),
    "no dtype": (header(a=entry(0, 24, dtype=None)), 72, "not None"),
    "a dtype that is not read": (header(a=entry(0, 24, dtype="F64")), 72, "takes 48 bytes"),
    "half a byte": (header(a=entry(0, 24, dtype="F4", shape=[49])), 72, "takes 24.5 bytes"),
    "backwards": (header(a=entry(24, 0)), 72, "takes 24 bytes"),
    "a size too large": (header(a=entry(0, 24, shape=[2**40, 2**40])), 72, "takes"),
    "metadata": (header(__metadata__={"a": 1}), 72, "__metadata__: expected texts by name"),
    "metadata as text": (header(__metadata__="pt"), 72, "__metadata__: expected texts by name"),
    "a name twice": (repeated("a", entry(72, 96)), 96, "header.a: this key is in the same JSON"),
    "a field twice": (
        json.dumps(header()).replace('"dtype": "F32"', '"dtype": "F16", "dtype": "F32"', 1),
        72,
        "header.dtype: this key is in the same JSON object twice",
    ),
}
ACCEPTED: dict[str, tuple[object, int]] = {
    "plain": (header(), 72),
    "padded header": (json.dumps(header()) + "  \n ", 72),
    "metadata": (header(__metadata__={"format": "pt"}), 72),
    "no metadata": (header(__metadata__=None), 72),
    "an empty tensor between two": (header(d=EMPTY), 72),
    "in another order": ({name: header()[name] for name in reversed(NAMES)}, 72),
    "other fields": (header(a=entry(0, 24, note="x")), 72),
}


def written(path: Path, table: object, size: int) -> Path:
    text = (table if isinstance(table, str) else json.dumps(table)).encode()
    data = b"".join(bytes([i]) for i in range(size))
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_official_reader_refuses_is_refused(case: str, tmp_path: Path) -> None:
    table, size, words = REFUSED[case]
    path = written(tmp_path / "x.safetensors", table, size)
    with pytest.raises(SafetensorError), safe_open(path, "pt"):
        pass
    with pytest.raises(BadCheckpoint) as caught:
        Shard(path)
    assert words in str(caught.value)


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_is_accepted_has_the_same_values(case: str, tmp_path: Path) -> None:
    path = written(tmp_path / "x.safetensors", *ACCEPTED[case])
    ours = Shard(path)
    with safe_open(path, "pt") as official:
        assert set(ours.entries) == set(official.keys())
        for name in ours.entries:
            same = official.get_tensor(name).view(torch.int32)
            assert torch.equal(ours.read(name).view(torch.int32), same)


def test_a_name_twice_for_the_same_bytes(tmp_path: Path) -> None:
    """The official reader takes the last of them; the format forbids it."""
    path = written(tmp_path / "x.safetensors", repeated("a", entry(0, 24)), 72)
    with pytest.raises(BadCheckpoint, match="this key is in the same JSON object twice"):
        Shard(path)


def test_a_tensor_under_both_of_its_names(tmp_path: Path) -> None:
    """Names of models that also see images are read as those of their text model."""
    fields = {"model.x": entry(0, 24), "model.language_model.x": entry(24, 48)}
    path = written(tmp_path / "x.safetensors", fields, 48)
    with pytest.raises(BadCheckpoint, match=r"is the same tensor as model\.x"):
        Shard(path)
