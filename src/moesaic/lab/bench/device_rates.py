"""What a GPU reaches at best: reading its memory, multiplying matrices, copies from the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns

import torch

from moesaic.core.units import GB, NS_PER_S
from moesaic.engine.make_machine import GPU_DEVICE
from moesaic.kernels.dtypes import torch_dtype
from moesaic.machines.real.cuda_streams import make_streams

_ATTEMPTS = 5
_READ_BYTES = 1 << 30
_COPY_BYTES = 1 << 26
_PRODUCT = 8192  # rows and columns: large enough for the full rate


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """Ceilings: the best of several attempts each."""

    read_gb_s: float
    tflops: float
    link_gb_s: float

    @classmethod
    def measured(cls, dtype: str, device: str = GPU_DEVICE, scale: int = 1) -> DeviceRates:
        """`scale` divides the sizes, for tests without a GPU."""
        with torch.inference_mode():
            return cls(
                _read_gb_s(device, _READ_BYTES // scale),
                _tflops(device, _PRODUCT // scale, dtype),
                _link_gb_s(device, _COPY_BYTES // scale),
            )


def _read_gb_s(device: str, size: int) -> float:
    values = torch.ones(size // 4, device=device)
    return size / _best_ns(device, values.sum) * NS_PER_S / GB


def _tflops(device: str, side: int, dtype: str) -> float:
    left = torch.ones((side, side), dtype=torch_dtype(dtype), device=device)
    return 2 * side**3 / _best_ns(device, lambda: left @ left) / 1e3


def _link_gb_s(device: str, size: int) -> float:
    streams = make_streams(device)
    source = streams.host_like(torch.empty(size // 4))
    target = torch.empty(size // 4, device=device)
    taken = _best_ns(device, lambda: streams.copy(target, source, None))
    return size / taken * NS_PER_S / GB


def _best_ns(device: str, work: Callable[[], object]) -> int:
    streams, runs = make_streams(device), []
    for _ in range(_ATTEMPTS + 1):
        started = perf_counter_ns()
        work()
        streams.synchronize()
        runs.append(perf_counter_ns() - started)
    return min(runs[1:])
