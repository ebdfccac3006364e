"""Writes everything of a model but its routed experts into one safetensors file, tensor by tensor:
no more than one of them is in memory."""

from __future__ import annotations

import json
from functools import partial
from typing import IO

import torch

from moesaic.models.checkpoints.expert_weights import names_in
from moesaic.models.checkpoints.safetensors_header import LENGTH_BYTES
from moesaic.models.checkpoints.shard import DTYPES
from moesaic.models.decoder_builder import DecoderBuilder
from moesaic.models.open_model import OpenModel

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LONGEST_ENTRY = 128  # characters of a table's entry besides name and shape
Shapes = dict[str, tuple[int, ...]]


class _Names:
    """A source of tensors without data that notes what was asked for."""

    def __init__(self) -> None:
        self.shapes: Shapes = {}

    def tensor(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        self.shapes[name] = shape
        return torch.empty(shape, dtype=dtype, device="meta")

    def empty(self, values: int) -> torch.Tensor:
        return torch.empty(values, device="meta")


def dense_shapes(model: OpenModel) -> Shapes:
    """The tensors that the network is built of, in the order in which it asks for them."""
    asked = _Names()
    names = partial(names_in, model.checkpoint, model.architecture)
    DecoderBuilder(model.architecture, asked, names).build()
    return asked.shapes


def write_dense(model: OpenModel, file: IO[bytes]) -> None:
    """Write tensors as stored. The table of contents, which comes first in the format, is written
    last, when the dtypes are known; the room kept for it is filled up with spaces, as the format
    allows."""
    shapes = dense_shapes(model)
    room = sum(len(name) + 21 * len(shape) + _LONGEST_ENTRY for name, shape in shapes.items())
    room = -(-room // 64) * 64 + 64 - LENGTH_BYTES  # tensors begin at a cache line
    file.seek(LENGTH_BYTES + room)
    table: dict[str, object] = {}
    end = 0
    for name, shape in shapes.items():
        tensor = model.checkpoint.read(name, shape).contiguous()
        raw = tensor.view(-1).view(torch.uint8).numpy()
        file.write(memoryview(raw))
        table[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(shape),
            "data_offsets": [end, end + raw.nbytes],
        }
        end += raw.nbytes
    text = json.dumps(table, separators=(",", ":")).encode()
    assert len(text) <= room, "the room was computed for the longest entries"
    file.seek(0)
    file.write(room.to_bytes(LENGTH_BYTES, "little") + text.ljust(room))
