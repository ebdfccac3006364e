"""In which precision a network's dense weights are packed for the native kernels, if they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moesaic.engine.engine_settings import EngineSettings
from moesaic.kernels.instruction_sets import REFERENCE, choose
from moesaic.model_info.dense_bytes import DensePrecision

if TYPE_CHECKING:
    from moesaic.kernels.native_linear import DenseRunner


def packed_dtype(settings: EngineSettings, dtype: str) -> DensePrecision | None:
    """`dtype` is what the network is computed in. None: its weights stay as they are read, for
    PyTorch or for an accelerator."""
    if settings.capabilities.moves or choose(settings.kernel) == REFERENCE:
        return None
    if settings.dense_dtype == "auto":
        return DensePrecision.of(dtype) if dtype == "bf16" else None
    return DensePrecision.of(settings.dense_dtype)


def dense_runner(settings: EngineSettings, dtype: str) -> DenseRunner | None:
    """What packs a decoder's matrices while it is built."""
    packed = packed_dtype(settings, dtype)
    if packed is None:
        return None
    from moesaic.kernels.native_linear import DenseRunner

    return DenseRunner(packed, choose(settings.kernel))
