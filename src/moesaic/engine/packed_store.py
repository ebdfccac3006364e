"""Opens the experts of a packed model: its file is mapped, or read into memory of the process
where that is faster or the only way.

A GPU copies from memory that is locked for it (cudaHostRegister), which not every system allows
for a file's pages; and experts that are spread over several memory nodes are read faster than
pages that lie on one of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import IO

from moesaic.core.errors import BadCheckpoint, ImpossibleSetting
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.expert_kernel import expert_kernel, kernel_for
from moesaic.engine.memory.packed_dtype import with_packed_dtype
from moesaic.hardware.host import usable_cores, usable_nodes
from moesaic.kernels.base import ExpertKernel
from moesaic.kernels.dtypes import torch_dtype
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.mapped_blocks import MappedBlocks
from moesaic.models.checkpoints.packed_experts import PackedExperts
from moesaic.models.open_model import OpenModel

Advance = Callable[[int], None]
_AGAIN = "pack the model again"
_PIECE = 1 << 24  # bytes read at a time
_READERS = 8  # threads: the cache gives more bytes a second to several


def why_copied(settings: EngineSettings) -> str | None:
    """Why these settings read a packed file instead of mapping it; None: they map it."""
    if settings.capabilities.own_memory:
        return "the GPU copies from memory that is locked for it"
    if settings.mmap is False:
        return "--no-mmap"
    nodes = len(usable_nodes())
    if settings.mmap is None and nodes > 1:
        return f"experts are spread over {nodes} memory nodes"
    return None


def packed_settings(model: OpenModel, settings: EngineSettings) -> EngineSettings:
    """The settings with the precision that a packed model's experts have; what would need another
    is refused, and so is an option that is about packed models only."""
    if not isinstance(model.experts, PackedExperts):
        if settings.mmap is not None:
            raise ImpossibleSetting(
                f"{'--mmap' if settings.mmap else '--no-mmap'} is about packed models, and "
                f"{model.architecture.spec.name} is not: its experts are converted while they are "
                "read. Leave it out, or pack the model with `moesaic pack`"
            )
        return settings
    if settings.mmap and settings.capabilities.own_memory:
        raise ImpossibleSetting(
            "--mmap with a GPU: it copies experts from memory that is locked for it, so a packed "
            "file is read into such memory; leave --mmap out"
        )
    return with_packed_dtype(settings, model.experts.path.parent)


def check_packed(model: OpenModel, settings: EngineSettings, dtype: str) -> None:
    """That the kernel of a machine with these settings, where everything but the experts is
    computed in `dtype`, reads a packed model's blocks."""
    experts, shape = model.experts, model.architecture.expert_shape
    if isinstance(experts, PackedExperts):
        name = kernel_for(shape, experts.dtype, torch_dtype(dtype), settings)
        experts.check(expert_kernel(shape, experts.dtype, name))


def packed_store(
    experts: PackedExperts, kernel: ExpertKernel, advance: Advance, mapped: bool
) -> ExpertStore:
    experts.check(kernel)
    if not mapped:
        return _read(experts, kernel, advance)
    blocks = MappedBlocks(experts.path, experts.data_start)
    header = experts.header
    store = ExpertStore(kernel, header.layers, header.experts, mapped=blocks)
    for layer in range(header.layers):
        blocks.populate(layer * header.layer_bytes, header.layer_bytes)
        _advance_layer(advance, header.experts)
    return store


def verify(experts: PackedExperts, advance: Advance) -> None:
    """Read everything and compare it with the checksums; a file or layer that differs is
    BadCheckpoint. What was added to the folder since is not read."""
    header = experts.header
    for name, expected in header.others.items():
        path = experts.path.with_name(name)
        if not path.is_file():
            raise BadCheckpoint(path, "file", f"was packed and is missing: {_AGAIN}")
        if file_checksum(path) != expected:
            raise BadCheckpoint(path, "file", f"its bytes are not those that were packed: {_AGAIN}")
    with experts.path.open("rb", buffering=0) as file:
        for layer, expected in enumerate(header.checksums):
            file.seek(experts.data_start + layer * header.layer_bytes)
            if _checksum(file, header.layer_bytes) != expected:
                what = f"its bytes are not those that were packed: {_AGAIN}"
                raise BadCheckpoint(experts.path, f"layer {layer}", what)
            advance(1)


def file_checksum(path: Path) -> int:
    """CRC-32 of a whole file."""
    with path.open("rb", buffering=0) as file:
        return _checksum(file, path.stat().st_size)


def _checksum(file: IO[bytes], left: int) -> int:
    found = 0
    while left and (part := file.read(min(left, _PIECE))):
        found, left = zlib.crc32(part, found), left - len(part)
    return found


def _read(experts: PackedExperts, kernel: ExpertKernel, advance: Advance) -> ExpertStore:
    header = experts.header
    store = ExpertStore(kernel, header.layers, header.experts, usable_nodes())
    readers = ThreadPoolExecutor(min(_READERS, usable_cores()))
    try:
        waiting = [
            readers.submit(_read_layer, experts, store, layer) for layer in range(header.layers)
        ]
        for done in as_completed(waiting):
            done.result()
            _advance_layer(advance, header.experts)
    finally:
        readers.shutdown(cancel_futures=True)
    return store


def _read_layer(experts: PackedExperts, store: ExpertStore, layer: int) -> None:
    rest = memoryview(store.rows(layer).numpy())
    with experts.path.open("rb", buffering=0) as file:
        file.seek(experts.data_start + layer * len(rest))
        while rest:
            count = file.readinto(rest)
            if not count:
                what = f"layer {layer} ended early: the file changed while it was read"
                raise BadCheckpoint(experts.path, "file", what)
            rest = rest[count:]


def _advance_layer(advance: Advance, experts: int) -> None:
    for _ in range(experts):
        advance(1)
