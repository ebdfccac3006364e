"""The kernel that computes a model's experts on this machine."""

from __future__ import annotations

from moesaic.core.errors import MoesaicError
from moesaic.hardware.machine_reader import THIS, load_machine, machine_file
from moesaic.kernels.base import ExpertKernel, ExpertShape
from moesaic.kernels.choose import make_kernel


def expert_kernel(shape: ExpertShape, dtype: str, kernel: str = "auto") -> ExpertKernel:
    """With what `moesaic profile` found out about vectors and tiles, where it has been run."""
    return make_kernel(shape, dtype, kernel, _tiles_from(dtype))


def _tiles_from(dtype: str) -> int | None:
    if not machine_file(THIS).is_file():
        return None
    try:
        measured = load_machine(THIS).cpu.tiles_from.get(dtype)
    except MoesaicError:  # a damaged description is reported where it is needed
        return None
    return None if measured is None else round(measured)
