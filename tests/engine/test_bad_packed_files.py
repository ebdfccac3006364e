"""Does each way a packed model can be wrong give one message with file and field?"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import stock
from moesaic.core.errors import BadCheckpoint
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.packed_store import verify
from moesaic.engine.preparation import prepare
from moesaic.kernels.instruction_sets import REFERENCE, choose
from moesaic.model_info.expert_block import ROWS, STRIPS
from moesaic.model_info.packed.header import (
    DATA_START,
    DENSE,
    EXPERTS,
    MAGIC,
    VERSION,
    PackedHeader,
    encoded,
    read_header,
)
from moesaic.models.checkpoints.packed_experts import PackedExperts
from moesaic.models.open_model import open_model
from packed_models import packed

OTHER = STRIPS if choose() == REFERENCE else ROWS  # the layout of other machines


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(stock.saved("mixtral").folder, tmp_path_factory.mktemp("made") / "m", "int8")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "m")


def complaint(folder: Path) -> str:
    with pytest.raises(BadCheckpoint) as caught:
        prepare(folder, EngineSettings())
    return str(caught.value)


def change(folder: Path, **fields: Any) -> None:
    header = replace(read_header(folder), **fields)
    with (folder / EXPERTS).open("r+b") as file:
        file.write(encoded(header))


def write_start(folder: Path, text: bytes, version: int = VERSION) -> None:
    """A header with a right checksum, whatever it says."""
    start = struct.pack("<8sII", MAGIC, version, len(text)) + text
    with (folder / EXPERTS).open("r+b") as file:
        file.write((start + sha256(start).digest()).ljust(DATA_START, b"\0"))


def test_the_whole_file_is_accepted(folder: Path) -> None:
    assert prepare(folder, EngineSettings()).plan.expert_dtype == "int8"


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"layout": OTHER}, "layout", "pack the model again on this machine"),
        ({"layout": "rows-7"}, "layout", "a kernel unknown here"),
        ({"shape": {"hidden": 8}}, "shape", "files are of different models"),
        ({"layers": 2, "experts": 9, "checksums": (1, 2)}, "layers", "this model has 3"),
        ({"layers": 2, "experts": 9, "checksums": (1,)}, "checksums", "for every layer"),
        ({"layers": 10**30}, "layers", "a whole number above 0"),
        ({"block_bytes": -1}, "block_bytes", "a whole number above 0"),
        ({"layers": True}, "layers", "a whole number above 0"),
        ({"dtype": ""}, "dtype", "some text"),
        ({"shape": [1]}, "shape", "expected fields"),
    ],
)
def test_a_header_of_something_else(
    folder: Path, fields: dict[str, Any], field: str, words: str
) -> None:
    change(folder, **fields)
    said = complaint(folder)
    assert f"{EXPERTS}': {field}: " in said
    assert words in said


def test_another_dtype_of_the_same_size_is_refused(folder: Path) -> None:
    """The kernel for it has other blocks."""
    change(folder, dtype="int4")
    assert "block_bytes: " in complaint(folder)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data[: DATA_START + 3],
        lambda data: data[:DATA_START],
    ],
)
def test_a_file_of_the_wrong_length(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    path = folder / EXPERTS
    path.write_bytes(damage(path.read_bytes()))
    assert "truncated or changed" in complaint(folder)


@pytest.mark.parametrize("length", [0, 7, 15, 16, 60, 500])
def test_a_header_cut_short(folder: Path, length: int) -> None:
    path = folder / EXPERTS
    path.write_bytes(path.read_bytes()[:length])
    said = complaint(folder)
    assert f"{EXPERTS}': {'magic' if length < 16 else 'header'}: " in said


@pytest.mark.parametrize("place", [16, 40, 200])
def test_a_changed_byte_of_the_header(folder: Path, place: int) -> None:
    path = folder / EXPERTS
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    assert "header: its checksum is wrong" in complaint(folder)


def test_another_version(folder: Path) -> None:
    write_start(folder, b"{}", VERSION + 1)
    assert f"version: is {VERSION + 1}, this release reads {VERSION}" in complaint(folder)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b"\xff", b"[" * 5000, b'{"layers": 1', b"9" * 6000]
)
def test_a_header_that_is_none(folder: Path, text: bytes) -> None:
    write_start(folder, text)
    assert "header: " in complaint(folder)


def test_a_field_too_many_or_too_few(folder: Path) -> None:
    fields = asdict(read_header(folder))
    write_start(folder, json.dumps(fields | {"extra": 1}).encode())
    assert "header: expected the fields layout, " in complaint(folder)
    del fields["layout"]
    write_start(folder, json.dumps(fields).encode())
    assert "header: expected the fields layout, " in complaint(folder)


def test_dense_weights_of_another_model(folder: Path) -> None:
    path = folder / DENSE
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    assert f"{DENSE}': file: is not the file packed with" in complaint(folder)
    path.write_bytes(data[:-1])
    assert str(path) in complaint(folder)


def test_other_files_are_verified(folder: Path) -> None:
    experts = open_model(folder).experts
    assert isinstance(experts, PackedExperts)
    assert {DENSE, "config.json"} <= experts.header.others.keys()
    for name in (DENSE, "config.json"):
        path = folder / name
        data = path.read_bytes()
        path.write_bytes(data[:-2] + bytes([data[-2] ^ 1]) + data[-1:])
        with pytest.raises(BadCheckpoint, match=f"{name}': file: its bytes are not those"):
            verify(experts, lambda done: None)
        path.unlink()
        with pytest.raises(BadCheckpoint, match=f"{name}': file: was packed and is missing"):
            verify(experts, lambda done: None)
        path.write_bytes(data)
    verify(experts, lambda done: None)


def test_a_changed_block_is_found_by_verifying(folder: Path) -> None:
    experts = open_model(folder).experts
    assert isinstance(experts, PackedExperts)
    read: list[int] = []
    verify(experts, read.append)
    assert len(read) == experts.header.layers
    header: PackedHeader = experts.header
    with experts.path.open("r+b") as file:
        file.seek(DATA_START + header.layer_bytes + 5)
        changed = file.read(1)[0] ^ 1
        file.seek(-1, 1)
        file.write(bytes([changed]))
    with pytest.raises(BadCheckpoint, match="layer 1: "):
        verify(experts, read.append)
