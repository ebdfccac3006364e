"""The routed experts of a packed model: blocks in a file, checked against the model's config and,
once it is known which kernel computes, against that. Reads no blocks."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from moesaic.core.errors import BadCheckpoint
from moesaic.kernels.base import ExpertKernel
from moesaic.model_info.expert_block import ROWS, STRIPS
from moesaic.model_info.packed.header import DATA_START, DENSE, EXPERTS, read_header
from moesaic.models.checkpoints.safetensors_header import contents_digest
from moesaic.models.configs.architecture import Architecture

_WHOSE = {ROWS: "the PyTorch kernel", STRIPS: "the native kernels"}


class PackedExperts:
    def __init__(self, folder: Path, architecture: Architecture) -> None:
        self.path = folder / EXPERTS
        self.header = read_header(folder)
        self.data_start = DATA_START
        spec = architecture.spec
        self._expect("shape", self.header.shape, asdict(architecture.expert_shape))
        self._expect("layers", self.header.layers, spec.num_moe_layers)
        self._expect("experts", self.header.experts, spec.num_experts)
        self._check_dense(folder / DENSE)

    @property
    def dtype(self) -> str:
        return self.header.dtype

    def check(self, kernel: ExpertKernel) -> None:
        """The blocks are as this kernel would have packed them; or BadCheckpoint."""
        ours, theirs = kernel.layout, self.header.layout
        if ours != theirs:
            whose, here = _WHOSE.get(theirs, "a kernel unknown here"), _WHOSE.get(ours, "another")
            what = (
                f"is {theirs!r}, of {whose}; with these settings {here} computes, which reads "
                f"{ours!r}: pack the model again on this machine{_remedy(theirs)}"
            )
            raise BadCheckpoint(self.path, "layout", what)
        self._expect("dtype", self.header.dtype, kernel.dtype)
        self._expect("block_bytes", self.header.block_bytes, kernel.block_bytes)

    def _expect(self, field: str, found: object, expected: object) -> None:
        if found != expected:
            what = f"says {found}, this model has {expected}: the files are of different models"
            raise BadCheckpoint(self.path, field, what)

    def _check_dense(self, path: Path) -> None:
        """That the file with the other weights is the one that was written with this."""
        size = path.stat().st_size if path.is_file() else None
        if size != self.header.dense_bytes or contents_digest(path) != self.header.dense_digest:
            what = f"is not the file packed with {EXPERTS}: pack the model again"
            raise BadCheckpoint(path, "file", what)


def _remedy(layout: str) -> str:
    return ", or give --kernel reference" if layout == ROWS else ""
