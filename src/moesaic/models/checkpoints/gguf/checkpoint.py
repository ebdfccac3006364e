"""A GGUF file's tensors under the names and in the shapes of the published checkpoint.

Some things differ beyond names. Experts are stacked; those of gpt-oss are in another order
(`interleaved`). llama.cpp turns neighbouring values of a head where it runs Mixtral and Granite, so
the rows of queries and keys are interleaved in its files; here they are put back. Newer files of
DeepSeek have the expansion of keys and of values apart, the first transposed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from moesaic.core.errors import BadCheckpoint
from moesaic.model_info.gguf.files import read_gguf
from moesaic.model_info.gguf.header import TensorInfo, is_expert
from moesaic.models.checkpoints.gguf.dequantize import FLOATS, dequantize, has_nan_scale
from moesaic.models.checkpoints.gguf.interleaved import FAMILIES, StackPart, joined, pieces
from moesaic.models.checkpoints.gguf.names import Location, locate
from moesaic.models.checkpoints.read_bytes import read_bytes
from moesaic.models.configs.architecture import Architecture

_INTERLEAVED = (
    "mixtral",
    "granitemoe",
)  # families whose queries and keys are stored for neighbouring pairs


class GgufCheckpoint:
    described_by = "its metadata"

    def __init__(self, path: Path, architecture: Architecture) -> None:
        self._path = path
        self._tensors = read_gguf(path).tensors
        self._spec = architecture.spec
        self._expected: set[str] = set()

    def __contains__(self, name: str) -> bool:
        found = locate(name, self._tensors)
        return found.name in self._tensors or self._is_apart(name)

    def expect(self, name: str, shape: Sequence[int]) -> None:
        stacks = self._interleaved(name, shape)
        if stacks is not None:
            for piece in stacks:
                self._check(Location(piece.name), piece.shape)
        elif self._is_apart(name):
            for location, expected in self._apart(name):
                self._check(location, expected)
        else:
            self._check(locate(name, self._tensors), shape)

    def read(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        if self._is_apart(name):
            return self._joined(name).reshape(tuple(shape))
        found = self._read(locate(name, self._tensors), shape)
        heads = self._interleaved_heads(name)
        return found if heads is None else _deinterleaved(found, heads)

    def read_part(self, name: str, shape: Sequence[int], index: int) -> torch.Tensor:
        stacks = self._interleaved(name, shape)
        if stacks is not None:
            return joined([self._read(Location(p.name, index), p.shape[1:]) for p in stacks])
        location = locate(name, self._tensors)
        self._check(location, shape)
        return self._read(Location(location.name, index), shape[1:])

    def unread(self) -> list[str]:
        return [name for name in self._tensors if name not in self._expected]

    def block_formats(self) -> tuple[str, ...]:
        experts = (info.type.name for name, info in self._tensors.items() if is_expert(name))
        return tuple(sorted(set(experts) - FLOATS.keys()))

    def file_of(self, name: str) -> Path:
        info = self._tensors.get(name) or self._tensors[locate(name, self._tensors).name]
        return info.path

    def _check(self, location: Location, shape: Sequence[int]) -> TensorInfo:
        """Leading dimensions of 1 say nothing: GGUF drops some of them."""
        self._expected.add(location.name)
        info = self._tensors.get(location.name)
        if info is None:
            raise BadCheckpoint(self._path, location.name, "the tensor is missing")
        found = info.shape if location.part is None else info.shape[1:]
        if _significant(found) != _significant(shape):
            what = f"expected shape {list(shape)}, found {list(found)}"
            raise BadCheckpoint(info.path, location.name, what)
        if location.part is not None and info.shape[0] != self._spec.num_experts:
            what = f"expected {self._spec.num_experts} experts, found {info.shape[0]}"
            raise BadCheckpoint(info.path, location.name, what)
        return info

    def _read(self, location: Location, shape: Sequence[int]) -> torch.Tensor:
        info = self._check(location, shape)
        size, start = info.size, info.start
        if location.part is not None:
            size //= info.shape[0]
            start += location.part * size
        raw = read_bytes(info.path, start, size, location.name)
        if has_nan_scale(raw, info.type):
            what = "a scale is 0xFF, which means that its block is no number"
            raise BadCheckpoint(info.path, location.name, what)
        return dequantize(raw, info.type).view(tuple(shape))

    def _interleaved(self, name: str, shape: Sequence[int]) -> list[StackPart] | None:
        return pieces(name, shape) if self._spec.family in FAMILIES else None

    def _interleaved_heads(self, name: str) -> int | None:
        if self._spec.family not in _INTERLEAVED:
            return None
        if ".self_attn.q_proj." in name:
            return self._spec.num_heads
        return self._spec.num_kv_heads if ".self_attn.k_proj." in name else None

    def _is_apart(self, name: str) -> bool:
        """Whether this is the expansion of keys and values, and stored as two tensors."""
        found = locate(name, self._tensors).name
        return (
            found.endswith(".attn_kv_b.weight")
            and found not in self._tensors
            and found.replace("attn_kv_b", "attn_k_b") in self._tensors
        )

    def _apart(self, name: str) -> list[tuple[Location, tuple[int, ...]]]:
        shape = self._spec.latent_attention
        assert shape is not None, "only latent attention has an expansion"
        heads, rank = self._spec.num_heads, shape.kv_lora_rank
        found = locate(name, self._tensors).name
        return [
            (
                Location(found.replace("attn_kv_b", "attn_k_b")),
                (heads, rank, shape.qk_nope_head_dim),
            ),
            (Location(found.replace("attn_kv_b", "attn_v_b")), (heads, shape.v_head_dim, rank)),
        ]

    def _joined(self, name: str) -> torch.Tensor:
        keys, values = (self._read(*piece).float() for piece in self._apart(name))
        return torch.cat((keys.transpose(1, 2), values), dim=1)


def _significant(shape: Sequence[int]) -> tuple[int, ...]:
    leading = next((place for place, size in enumerate(shape) if size != 1), len(shape))
    return tuple(shape[leading:])


def _deinterleaved(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Of every head, the first of all pairs, then the second: pairs are half a head apart again."""
    width = rows.shape[0] // heads
    assert math.prod(rows.shape[:1]) == heads * width, "heads are equally wide"
    apart = rows.unflatten(0, (heads, width // 2, 2))
    return apart.transpose(1, 2).flatten(0, 2).contiguous()
