"""The native CPU kernels as C functions, for the conductor: a worker pool and a runner on it."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_int32, c_void_p

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import EngineFailed
from moesaic.kernels.native_format import ACTIVATIONS, DTYPES
from moesaic.machines.captured.conductor import CpuExperts
from moesaic.model_info.expert_shape import ExpertShape


class LayerCall(ctypes.Structure):
    """`moesaic_layer` of moesaic_native.h."""

    _fields_ = (
        ("hidden", c_void_p), ("hidden_type", c_int32), ("hidden_stride", ctypes.c_size_t),
        ("tokens", c_int32), ("top_k", c_int32), ("experts_total", c_int32),
        ("ids", c_void_p), ("weights", c_void_p), ("count", c_int32), ("experts", c_void_p),
        ("blocks", c_void_p), ("out", c_void_p), ("out_type", c_int32), ("add", c_int32),
        ("done_flag", c_void_p), ("done_value", ctypes.c_uint32), ("done_ns", c_void_p),
        ("any_weights", c_int32),
    )  # fmt: skip


SPIN_US = 5000.0  # workers stay awake between the layers of a step, and from token to token


class CpuRunner:
    """`threads` counts the conductor, which helps while it waits."""

    def __init__(self, shape: ExpertShape, dtype: str, threads: int, tiles_from: int) -> None:
        from moesaic.kernels import _native

        self._library = library = ctypes.CDLL(str(_native.__file__))
        library.moesaic_pool_create.restype = c_void_p
        library.moesaic_pool_create.argtypes = (POINTER(c_int32), c_int32, c_double)
        library.moesaic_runner_create.restype = c_void_p
        library.moesaic_runner_create.argtypes = (c_void_p, *[c_int32] * 6)
        library.moesaic_last_error.restype = c_char_p
        workers = threads - 1
        cores = (c_int32 * workers)(*[-1] * workers)
        self._pool = library.moesaic_pool_create(cores, workers, SPIN_US)
        self._runner = self._pool and library.moesaic_runner_create(
            self._pool, DTYPES[dtype], shape.hidden, shape.intermediate,
            ACTIVATIONS[shape.activation], 0, tiles_from,
        )  # fmt: skip
        if not self._runner:
            raise EngineFailed(f"no CPU kernels: {library.moesaic_last_error().decode()}")

    def addresses(self) -> CpuExperts:
        verbs = ("submit", "wait", "last_error", "read_ahead", "read_some")
        names = [f"moesaic_{verb}" for verb in verbs]
        found = (ctypes.cast(getattr(self._library, n), c_void_p).value or 0 for n in names)
        return CpuExperts(self._runner, *found)

    def run(self, call: LayerCall) -> None:
        """Compute a layer and wait for it, as the conductor does."""
        library = self._library
        library.moesaic_submit.argtypes = (c_void_p, POINTER(LayerCall))
        library.moesaic_wait.argtypes = (c_void_p, c_int32)
        if library.moesaic_submit(self._runner, ctypes.byref(call)) or library.moesaic_wait(
            self._runner, 1
        ):
            raise EngineFailed(library.moesaic_last_error().decode())

    def read_ahead(self, blocks: NDArray[np.int64]) -> None:
        """Experts that the next layer may have, by their blocks' addresses, likeliest first."""
        library = self._library
        library.moesaic_read_ahead.argtypes = (c_void_p, c_void_p, c_int32)
        if library.moesaic_read_ahead(self._runner, blocks.ctypes.data, len(blocks)):
            raise EngineFailed(library.moesaic_last_error().decode())

    def read_some(self) -> bool:
        """A few lines of the caller's own part of them; False: nothing is left."""
        self._library.moesaic_read_some.argtypes = (c_void_p,)
        return bool(self._library.moesaic_read_some(self._runner))

    def close(self) -> None:
        library = self._library
        library.moesaic_runner_destroy.argtypes = (c_void_p,)
        library.moesaic_pool_destroy.argtypes = (c_void_p,)
        library.moesaic_runner_destroy(self._runner)
        library.moesaic_pool_destroy(self._pool)
