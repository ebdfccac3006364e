"""Safetensors some of whose matrices are quantized: under their published names and in floating
point, whichever family they belong to. Which are, the tensors that are there say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from moesaic.core.errors import BadCheckpoint
from moesaic.model_info.quantization.kinds import (
    Awq,
    Gptq,
    Mxfp4,
    PackedIntegers,
    Quantization,
    Scaled,
)
from moesaic.models.checkpoints.checkpoint import Checkpoint
from moesaic.models.checkpoints.quantized.layout import Layout, StoredTensor, Unfit
from moesaic.models.checkpoints.quantized.mxfp4 import Mxfp4Layout
from moesaic.models.checkpoints.quantized.packed_integers import AwqLayout, GptqLayout, PackedLayout
from moesaic.models.checkpoints.quantized.scaled import ScaledLayout

_EXPERTS = ".experts."


def layout_of(form: Quantization) -> Layout:
    match form:
        case Scaled():
            return ScaledLayout(form)
        case Gptq():
            return GptqLayout(form)
        case Awq():
            return AwqLayout(form)
        case PackedIntegers():
            return PackedLayout(form)
        case Mxfp4():
            return Mxfp4Layout(form)


class QuantizedCheckpoint:
    described_by = "config.json"

    def __init__(self, stored: Checkpoint, form: Quantization) -> None:
        self._stored = stored
        self._layout = layout_of(form)
        self._experts = False  # whether any of them is quantized

    def __contains__(self, name: str) -> bool:
        return name in self._stored or self._is_quantized(name)

    def expect(self, name: str, shape: Sequence[int]) -> None:
        if not self._is_quantized(name):
            self._stored.expect(name, shape)
            return
        self._experts = self._experts or _EXPERTS in name
        for part in self._parts(name, shape).values():
            self._stored.expect_part(*part)

    def read(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        if not self._is_quantized(name):
            return self._stored.read(name, shape)
        return self._dequantized(name, shape, None)

    def read_part(self, name: str, shape: Sequence[int], index: int) -> torch.Tensor:
        if not self._is_quantized(name):
            return self._stored.read_part(name, shape, index)
        return self._dequantized(name, shape, index)

    def unread(self) -> list[str]:
        return [name for name in self._stored.unread() if not self._layout.is_harmless(name)]

    def block_formats(self) -> tuple[str, ...]:
        return (self._layout.title,) if self._experts else ()

    def file_of(self, name: str) -> Path:
        return self._stored.file_of(name if name in self._stored else self._layout.marker(name))

    def _is_quantized(self, name: str) -> bool:
        return self._layout.marker(name) in self._stored

    def _parts(self, name: str, shape: Sequence[int]) -> dict[str, StoredTensor]:
        try:
            return self._layout.parts(name, shape, self._stored)
        except Unfit as error:
            raise BadCheckpoint(self.file_of(name), name, str(error)) from None

    def _dequantized(self, name: str, shape: Sequence[int], index: int | None) -> torch.Tensor:
        self.expect(name, shape)
        found = {
            role: self._stored.read_stored(part.name, index)
            for role, part in self._parts(name, shape).items()
        }
        try:
            return self._layout.dequantize(found, shape if index is None else shape[1:])
        except Unfit as error:
            raise BadCheckpoint(self.file_of(name), name, str(error)) from None
