"""Is every safetensors file refused that the format's own reader refuses?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from moesaic.core.errors import BadCheckpoint
from moesaic.models.checkpoints.checkpoint import Checkpoint
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


# One safetensors file at its edges: whole, cut off by a byte, or something else altogether.

STACK = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
BIAS = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)


def whole(folder: Path) -> Path:
    path = folder / "model.safetensors"
    save_file({"stack": STACK, "bias": BIAS}, path, metadata={"format": "pt"})
    return path


def refusal(path: Path) -> str:
    with pytest.raises(BadCheckpoint) as caught:
        Shard(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def with_header(path: Path, fields: object, data: bytes = bytes(8)) -> Path:
    header = json.dumps(fields).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


def test_tensors_and_parts_of_stacks_are_read_as_stored(tmp_path: Path) -> None:
    shard = Shard(whole(tmp_path))
    assert set(shard.entries) == {"stack", "bias"}, "what is said about the file is no tensor"
    assert torch.equal(shard.read("stack"), STACK)
    assert torch.equal(shard.read("bias"), BIAS)
    for index in range(2):
        assert torch.equal(shard.read("stack", index), STACK[index])


def test_one_byte_less_is_noticed_before_anything_is_read(tmp_path: Path) -> None:
    path = whole(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    said = refusal(path)
    assert f"truncated: expected {len(content)} bytes, it has {len(content) - 1}" in said


def test_a_header_that_is_cut_off(tmp_path: Path) -> None:
    path = whole(tmp_path)
    length = int.from_bytes(path.read_bytes()[:8], "little")
    path.write_bytes(path.read_bytes()[: 8 + length - 1])
    assert f"truncated: expected {8 + length} bytes, it has {7 + length}" in refusal(path)


@pytest.mark.parametrize(
    "content", [b"", bytes(7), (10**9).to_bytes(8, "little"), (3).to_bytes(8, "little") + b"xyz"]
)
def test_what_is_no_such_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    assert "this is not a safetensors file" in refusal(path)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([1], "expected a table of tensors"),
        ({"a": {"dtype": "F32", "shape": [2]}}, "expected dtype, shape and data_offsets"),
        (
            {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
            "F32 [2] takes 8 bytes, the header gives it 4",
        ),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [-4, 4]}}, "takes 8 bytes"),
    ],
)
def test_a_header_that_contradicts_itself(fields: object, said: str, tmp_path: Path) -> None:
    assert said in refusal(with_header(tmp_path / "model.safetensors", fields))


def test_a_tensor_of_a_precision_we_do_not_read_is_listed(tmp_path: Path) -> None:
    """It may be a tensor that is not read."""
    fields = {"a": {"dtype": "I8", "shape": [8], "data_offsets": [0, 8]}}
    with_header(tmp_path / "model.safetensors", fields)
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.unread() == ["a"]
    with pytest.raises(BadCheckpoint, match="stored as I8; expected F32, F16, BF16"):
        checkpoint.expect("a", [8])
    assert checkpoint.unread() == []


@pytest.mark.parametrize("shape", [(3, 2, 4), (24,), (2, 3, 4, 1), (2, 3)])
def test_another_shape_is_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    whole(tmp_path)
    checkpoint = Checkpoint(tmp_path)
    said = r"expected shape \[.*\], found \[2, 3, 4\]"
    with pytest.raises(BadCheckpoint, match=said):
        checkpoint.expect("stack", shape)
    with pytest.raises(BadCheckpoint, match=said):
        checkpoint.read("stack", shape)
    with pytest.raises(BadCheckpoint, match=said):
        checkpoint.read_part("stack", shape, 0)
    assert torch.equal(checkpoint.read_part("stack", (2, 3, 4), 1), STACK[1])
