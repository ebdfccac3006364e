"""Writes a packed model: a directory with the routed experts as the kernel of this machine computes
from them, everything else as it was, ready to be mapped.

All is planned before anything is written; the directory appears whole or not at all.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import IO

import torch

from moesaic import __version__
from moesaic.core.errors import ImpossibleSetting
from moesaic.core.folders import whole_folder
from moesaic.core.routing import ExpertId
from moesaic.core.units import GB
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.expert_kernel import expert_kernel
from moesaic.engine.memory.sizes import Sizes
from moesaic.engine.packed_store import file_checksum
from moesaic.engine.packing_target import packing_target
from moesaic.kernels.base import ALIGNMENT, ExpertKernel, ExpertWeights
from moesaic.kernels.instruction_sets import REFERENCE
from moesaic.model_info.model_files import SMALL_FILES
from moesaic.model_info.packed.header import DATA_START, DENSE, EXPERTS, PackedHeader, encoded
from moesaic.models.checkpoints.safetensors_header import contents_digest
from moesaic.models.checkpoints.source_files import fingerprint, write_config
from moesaic.models.checkpoints.unread_tensors import check_tied_head
from moesaic.models.dense_file import dense_shapes, write_dense
from moesaic.models.open_model import OpenModel, readable_experts

Experts = Iterable[tuple[ExpertId, ExpertWeights]]
_WIDEST = 4  # bytes of a dense weight, at most


@dataclass(frozen=True, slots=True)
class Packing:
    """What will be written, and that it can be."""

    model: OpenModel
    folder: Path  # of the model
    target: Path
    kernel: ExpertKernel
    expert_bytes: int
    other_bytes: int  # at most

    @property
    def bytes(self) -> int:
        return self.expert_bytes + self.other_bytes


def plan_packing(model: OpenModel, folder: Path, target: Path, settings: EngineSettings) -> Packing:
    """Refuses what could not be packed, or not written there."""
    readable_experts(model)
    if not folder.is_dir():
        raise ImpossibleSetting(
            f"{str(folder)!r} is a file: a model is packed from a directory in Hugging Face layout"
        )
    check_tied_head(model.checkpoint, model.architecture)  # which would be left out
    spec = model.architecture.spec
    dtype = Sizes.of(spec, settings).expert_dtype
    kernel = expert_kernel(model.architecture.expert_shape, dtype, settings.kernel)
    dense = _WIDEST * sum(prod(shape) for shape in dense_shapes(model).values())
    small = sum((folder / name).stat().st_size for name in _small_files(folder))
    experts = spec.num_expert_blocks * kernel.block_bytes
    packing = Packing(model, folder, packing_target(target), kernel, experts, dense + small)
    _check_disk(packing)
    return packing


def _check_disk(packing: Packing) -> None:
    target = packing.target
    free = shutil.disk_usage(target.parent).free
    if packing.bytes > free:
        raise ImpossibleSetting(
            f"packed, {packing.model.architecture.spec.name} takes up to {packing.bytes / GB:.2f} "
            f"GB on disk, and {str(target.parent)!r} has {free / GB:.2f} GB free: make room, or "
            "give a directory on another disk"
        )


def write_packing(packing: Packing, advance: Callable[[int], None]) -> None:
    """`advance(1)` is called for every expert."""
    with whole_folder(packing.target) as fresh:
        with (fresh / DENSE).open("wb") as file:
            write_dense(packing.model, file)
            _to_disk(file)
        for name in _small_files(packing.folder):
            shutil.copyfile(packing.folder / name, fresh / name)
        write_config(packing.folder, fresh)
        write_experts(packing, readable_experts(packing.model), fresh, advance)


def write_experts(
    packing: Packing, experts: Experts, folder: Path, advance: Callable[[int], None]
) -> None:
    """The file of `experts`, which come layer by layer. What the header says of other files must
    be written."""
    spec, kernel = packing.model.architecture.spec, packing.kernel
    block = _block(kernel.block_bytes)
    checksums = [0] * spec.num_moe_layers
    with (folder / EXPERTS).open("wb") as file:
        file.seek(DATA_START)
        for (layer, _), weights in experts:
            block.zero_()  # a kernel need not fill all of it
            kernel.pack(weights, block)
            raw = memoryview(block.numpy())
            file.write(raw)
            checksums[layer] = zlib.crc32(raw, checksums[layer])
            advance(1)
        file.seek(0)
        file.write(encoded(_header(packing, folder, tuple(checksums))))
        _to_disk(file)


def _header(packing: Packing, folder: Path, checksums: tuple[int, ...]) -> PackedHeader:
    spec, kernel, dense = packing.model.architecture.spec, packing.kernel, folder / DENSE
    return PackedHeader(
        layout=kernel.layout,
        dtype=kernel.dtype,
        kernel=getattr(kernel, "isa", REFERENCE),
        shape=asdict(kernel.shape),
        layers=spec.num_moe_layers,
        experts=spec.num_experts,
        block_bytes=kernel.block_bytes,
        dense_bytes=dense.stat().st_size,
        dense_digest=contents_digest(dense),
        source=spec.name,
        fingerprint=fingerprint(packing.folder),
        made_by=__version__,
        checksums=checksums,
        others={
            each.name: file_checksum(each)
            for each in sorted(folder.iterdir())
            if each.name != EXPERTS
        },
    )


def _block(size: int) -> torch.Tensor:
    """Aligned, as kernels want it."""
    raw = torch.empty(size + ALIGNMENT, dtype=torch.uint8)
    start = -raw.data_ptr() % ALIGNMENT
    return raw[start : start + size]


def _small_files(folder: Path) -> list[str]:
    return [name for name in SMALL_FILES if (folder / name).is_file()]


def _to_disk(file: IO[bytes]) -> None:
    """Before the directory gets its name: one that is there is complete, also after a power cut."""
    file.flush()
    os.fsync(file.fileno())
