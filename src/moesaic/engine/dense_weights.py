"""In which precision a network's dense weights are packed, if they are, and by whom: for the native
kernels where the CPU computes everything, else for the accelerator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moesaic.engine.engine_settings import EngineSettings
from moesaic.kernels.instruction_sets import choose
from moesaic.model_info.dense_bytes import DensePrecision

if TYPE_CHECKING:
    from moesaic.kernels.native_linear import DenseRunner
    from moesaic.kernels.quantized_linear import DenseQuantizer


def packed_dtype(settings: EngineSettings, dtype: str) -> DensePrecision | None:
    """`dtype` is what the network is computed in. None: its weights stay as they are read, for
    PyTorch or for an accelerator, where parts in bf16 do so, too."""
    asked = settings.dense_dtype
    if settings.capabilities.moves:
        precision = DensePrecision.of("bf16" if asked == "auto" else asked)
        return precision if precision.quantizes else None
    if not settings.native_kernels:
        return None
    if asked == "auto":
        return DensePrecision.of(dtype) if dtype == "bf16" else None
    return DensePrecision.of(asked)


def dense_packer(settings: EngineSettings, dtype: str) -> DenseRunner | DenseQuantizer | None:
    """What packs a decoder's matrices while it is built."""
    packed = packed_dtype(settings, dtype)
    if packed is None:
        return None
    if settings.capabilities.moves:
        from moesaic.kernels.quantized_linear import DenseQuantizer

        return DenseQuantizer(packed)
    from moesaic.kernels.native_linear import DenseRunner

    return DenseRunner(packed, choose(settings.kernel))
