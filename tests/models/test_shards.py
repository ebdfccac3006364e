"""One safetensors file at its edges: whole, cut off by a byte, or something else altogether."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from moesaic.core.errors import BadCheckpoint
from moesaic.models.checkpoints.checkpoint import Checkpoint
from moesaic.models.checkpoints.shard import Shard

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
