"""The kernel that computes a model's experts on this machine."""

from __future__ import annotations

import torch

from moesaic.core.errors import MoesaicError
from moesaic.engine.engine_settings import EngineSettings
from moesaic.hardware.machine_reader import THIS, load_machine, machine_file
from moesaic.kernels.base import ExpertKernel
from moesaic.kernels.choose import make_kernel
from moesaic.kernels.gpu.experts import supports
from moesaic.kernels.instruction_sets import REFERENCE
from moesaic.model_info.expert_shape import ExpertShape


def expert_kernel(shape: ExpertShape, dtype: str, kernel: str = "auto") -> ExpertKernel:
    """The kernel, with what `moesaic profile` has measured of vectors and tiles, where it has been
    run."""
    return make_kernel(shape, dtype, kernel, _tiles_from(dtype))


def kernel_for(
    shape: ExpertShape, dtype: str, activations: torch.dtype, settings: EngineSettings
) -> str:
    """The name of the kernels whose layout all devices of such a machine can read. Where a GPU
    reads the same blocks that is PyTorch's, unless the GPU's own kernels can read the native one
    (they compute with activations in bf16)."""
    if not settings.capabilities.own_memory:
        return settings.kernel
    able = activations is torch.bfloat16 and supports(shape, dtype)
    return settings.kernel if able else REFERENCE


def _tiles_from(dtype: str) -> int | None:
    if not machine_file(THIS).is_file():
        return None
    try:
        measured = load_machine(THIS).cpu.tiles_from.get(dtype)
    except MoesaicError:  # a damaged description is reported where it is needed
        return None
    return None if measured is None else round(measured)
