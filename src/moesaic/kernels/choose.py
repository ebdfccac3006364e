"""Which kernel computes experts stored in a given precision."""

from __future__ import annotations

from moesaic.core.errors import UnknownName
from moesaic.kernels.base import ExpertKernel
from moesaic.kernels.dtypes import TORCH_DTYPES
from moesaic.kernels.instruction_sets import REFERENCE, choose
from moesaic.kernels.quantize import FORMATS
from moesaic.kernels.quantized import QuantizedKernel
from moesaic.kernels.reference import ReferenceKernel
from moesaic.model_info.expert_shape import ExpertShape

EXPERT_DTYPES = (*TORCH_DTYPES, *FORMATS)


def make_kernel(
    shape: ExpertShape, dtype: str, kernel: str = "auto", tiles_from: int | None = None
) -> ExpertKernel:
    """`kernel` is one of `instruction_sets.KERNELS`. What the native kernels do not support (fp32
    and fp16 weights, `ExpertShape.unusual`) is computed by PyTorch. `tiles_from`: see
    `crossover.py`."""
    if dtype not in EXPERT_DTYPES:
        raise UnknownName("expert dtype", dtype, EXPERT_DTYPES)
    name = choose(kernel)
    if name != REFERENCE:
        from moesaic.kernels.native import NativeKernel, supports

        if supports(shape, dtype):
            return NativeKernel(shape, dtype, name, tiles_from)
    if dtype in TORCH_DTYPES:
        return ReferenceKernel(shape, dtype)
    return QuantizedKernel(shape, dtype)
