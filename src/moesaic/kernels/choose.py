"""Which kernel computes experts stored in a given precision."""

from __future__ import annotations

from moesaic.core.errors import UnknownName
from moesaic.kernels.base import ExpertKernel, ExpertShape
from moesaic.kernels.dtypes import TORCH_DTYPES
from moesaic.kernels.quantize import FORMATS
from moesaic.kernels.quantized import QuantizedKernel
from moesaic.kernels.reference import ReferenceKernel

EXPERT_DTYPES = (*TORCH_DTYPES, *FORMATS)


def make_kernel(shape: ExpertShape, dtype: str) -> ExpertKernel:
    if dtype in TORCH_DTYPES:
        return ReferenceKernel(shape, dtype)
    if dtype in FORMATS:
        return QuantizedKernel(shape, dtype)
    raise UnknownName("expert dtype", dtype, EXPERT_DTYPES)
