"""Safetensors files and indexes that lie, for the fuzzer. What is read must be what the official
reader finds in the same file."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from fuzzing.lies import Lie, SilentlyRead, lying
from moesaic.models.checkpoints.checkpoint import Checkpoint

_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_BYTES = 24
_SAME = (("F32", "I32"), ("BF16", "F16"), ("I8", "U8"))


class _Table:
    """A file before it is written: names may repeat."""

    def __init__(self, names: tuple[str, ...] = ("a", "b", "model.c", "d")) -> None:
        kinds = (("F32", [2, 3]), ("F32", [2, 3]), ("BF16", [4, 3]), ("I8", [2, 12]))
        self.entries: list[tuple[str, dict[str, Any]]] = []
        for number, (name, (dtype, shape)) in enumerate(zip(names, kinds, strict=False)):
            offsets = [_BYTES * number, _BYTES * number + _BYTES]
            fields = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
            self.entries.append((name, fields))
        self.data = bytearray(i % 251 for i in range(_BYTES * len(self.entries)))
        self.metadata: Any = {"format": "pt"}

    def save(self, path: Path) -> None:
        pairs = [("__metadata__", self.metadata), *self.entries]
        text = ", ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in pairs)
        header = f"{{{text}}}".encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + self.data)


def _fields(table: _Table, rng: random.Random) -> dict[str, Any]:
    return rng.choice(table.entries)[1]


def _exchange(field: str, table: _Table, rng: random.Random) -> None:
    (_, one), (_, other) = rng.sample(table.entries, 2)
    one[field], other[field] = other[field], one[field]


def _exchange_names(table: _Table, rng: random.Random) -> None:
    one, other = rng.sample(range(len(table.entries)), 2)
    entries = table.entries
    names = entries[one][0], entries[other][0]
    entries[one], entries[other] = (names[1], entries[one][1]), (names[0], entries[other][1])


def _overlap(table: _Table, rng: random.Random) -> None:
    fields = rng.choice(table.entries[1:])[1]
    back = rng.randint(1, _BYTES)
    fields["data_offsets"] = [offset - back for offset in fields["data_offsets"]]


def _same_bytes(table: _Table, rng: random.Random) -> None:
    _, fields = table.entries[-1]
    fields["data_offsets"] = list(rng.choice(table.entries[:-1])[1]["data_offsets"])
    del table.data[-_BYTES:]


def _gap(table: _Table, rng: random.Random) -> None:
    first, more = rng.randrange(len(table.entries)), rng.randint(1, 64)
    for _, fields in table.entries[first:]:
        fields["data_offsets"] = [offset + more for offset in fields["data_offsets"]]
    table.data += bytes(more)


def _other_dtype(table: _Table, rng: random.Random) -> None:
    fields = _fields(table, rng)
    fields["dtype"] = rng.choice(["F64", "I64", "U64", "C64", "Q4_0", "f32", ""])


def _same_size_dtype(table: _Table, rng: random.Random) -> None:
    fields = _fields(table, rng)
    pair = next(pair for pair in _SAME if fields["dtype"] in pair)
    fields["dtype"] = pair[1] if fields["dtype"] == pair[0] else pair[0]


def _repeat(table: _Table, rng: random.Random) -> None:
    name, fields = rng.choice(table.entries)
    number = len(table.data)
    copy = fields | {"data_offsets": [number, number + _BYTES]} if rng.random() < 0.5 else fields
    table.entries.insert(rng.randrange(len(table.entries) + 1), (name, copy))
    if copy is not fields:
        table.data += rng.randbytes(_BYTES)


def _both_names(table: _Table, rng: random.Random) -> None:
    end = len(table.data)
    fields = {"dtype": "I8", "shape": [_BYTES], "data_offsets": [end, end + _BYTES]}
    table.entries.append(("model.language_model.c", fields))
    table.data += rng.randbytes(_BYTES)


def _empty_inside(table: _Table, rng: random.Random) -> None:
    place = rng.randint(1, _BYTES - 1)
    fields = {"dtype": "F32", "shape": [0], "data_offsets": [place, place]}
    table.entries.append(("empty", fields))


_TENSOR_LIES = {
    "exchanged offsets": Lie(lambda t, r: _exchange("data_offsets", t, r), allowed=True),
    "exchanged shapes": Lie(lambda t, r: _exchange("shape", t, r), allowed=True),
    "exchanged names": Lie(_exchange_names, allowed=True),
    "another order": Lie(lambda t, r: r.shuffle(t.entries), allowed=True),
    "transposed": Lie(lambda t, r: _fields(t, r)["shape"].reverse(), allowed=True),
    "a dtype of the same size": Lie(_same_size_dtype, allowed=True),
    "another dtype": Lie(_other_dtype),
    "another count": Lie(lambda t, r: _fields(t, r)["shape"].append(r.choice([0, 2, 2**62]))),
    "overlap": Lie(_overlap),
    "the bytes of another": Lie(_same_bytes),
    "gap": Lie(_gap),
    "trailing bytes": Lie(lambda t, r: t.data.extend(r.randbytes(r.randint(1, 99)))),
    "a name twice": Lie(_repeat),
    "both names": Lie(_both_names),
    "an empty tensor inside another": Lie(_empty_inside),
    "metadata": Lie(lambda t, r: setattr(t, "metadata", r.choice([1, [], {"a": 1}, "x"]))),
}


def _read_as_official(folder: Path) -> None:
    checkpoint = Checkpoint(folder)
    try:
        with safe_open(folder / _FILE, "pt") as official:
            theirs = {name: official.get_tensor(name) for name in official.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise SilentlyRead(f"the official reader refuses it: {error}") from None
    if set(checkpoint.unread()) != set(theirs):
        raise SilentlyRead("other names than the official reader's")
    for name, tensor in theirs.items():
        checkpoint.expect_part(name, tensor.shape, ("F32", "I32", "BF16", "F16", "I8", "U8"))
        ours = checkpoint.read_stored(name)
        if ours.dtype != tensor.dtype or not torch.equal(_bytes(ours), _bytes(tensor)):
            raise SilentlyRead(f"{name} has other values than the official reader's")


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


_NAMES = (("a", "b"), ("c", "d"), ("e", "f"))


class _Sharded:
    def __init__(self) -> None:
        self.shards = {f"m-{n}.safetensors": list(names) for n, names in enumerate(_NAMES)}
        self.places: list[tuple[str, str]] = [
            (name, file) for file, names in self.shards.items() for name in names
        ]
        self.size: Any = 144

    def save(self, folder: Path) -> None:
        for file, names in self.shards.items():
            table = _Table(tuple(names))
            table.data = bytearray(b"".join(_values(name) for name in names))
            table.save(folder / file)
        pairs = (f"{json.dumps(name)}: {json.dumps(file)}" for name, file in self.places)
        size = json.dumps({"total_size": self.size})
        text = f'{{"metadata": {size}, "weight_map": {{{", ".join(pairs)}}}}}'
        (folder / _INDEX).write_text(text)

    def place(self, rng: random.Random, file: str | None = None) -> None:
        """A tensor in another file, or in this one."""
        number = rng.randrange(len(self.places))
        name, before = self.places[number]
        others = [each for each in self.shards if each != before]
        self.places[number] = (name, rng.choice(others) if file is None else file)


def _values(name: str) -> bytes:
    return bytes([ord(name)]) * _BYTES


def _copy_tensor(index: _Sharded, rng: random.Random) -> None:
    one, other = rng.sample(list(index.shards), 2)
    index.shards[other].append(index.shards[one][0])


def _repeat_place(index: _Sharded, rng: random.Random) -> None:
    name, _ = rng.choice(index.places)
    index.places.append((name, rng.choice(list(index.shards))))


_INDEX_LIES = {
    "another file": Lie(lambda i, r: i.place(r)),
    "no such file": Lie(lambda i, r: i.place(r, "m-9.safetensors")),
    "a file elsewhere": Lie(lambda i, r: i.place(r, r.choice(["../m.safetensors", "/dev/zero"]))),
    "a folder": Lie(lambda i, r: i.place(r, ".")),
    "a tensor in two files": Lie(_copy_tensor),
    "a place twice": Lie(_repeat_place),
    "a tensor without a place": Lie(lambda i, r: i.places.pop(r.randrange(6)), allowed=True),
    "a file without places": Lie(lambda i, r: i.places.__delitem__(slice(2)), allowed=True),
    "a place without a tensor": Lie(
        lambda i, r: i.places.append(("x", "m-0.safetensors")), allowed=True
    ),
    "another size": Lie(lambda i, r: setattr(i, "size", r.choice([-1, 0, 2**70])), allowed=True),
}


def _read_indexed(folder: Path) -> None:
    checkpoint = Checkpoint(folder)
    for name in (name for names in _NAMES for name in names):
        found = checkpoint.read(name, (2, 3))
        if bytes(_bytes(found).tolist()) != _values(name):
            raise SilentlyRead(f"{name} has the values of another tensor")


TENSORS = lying(_Table, lambda f, t: t.save(f / _FILE), _TENSOR_LIES, _read_as_official)
INDEXES = lying(_Sharded, lambda f, i: i.save(f), _INDEX_LIES, _read_indexed)
