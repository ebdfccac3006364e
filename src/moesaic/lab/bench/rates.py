"""What this machine reaches at best, measured with the threads that a bench uses: reading memory,
multiplying matrices, copying over the link.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from moesaic.core.layer_plan import Move
from moesaic.core.units import GB, NS_PER_S
from moesaic.engine.engine_settings import EngineSettings
from moesaic.hardware.host import usable_cores
from moesaic.kernels.cores import worker_cores
from moesaic.kernels.dtypes import torch_dtype
from moesaic.kernels.instruction_sets import REFERENCE, available, choose, native
from moesaic.kernels.products import linear
from moesaic.lab.bench.device_rates import DeviceRates
from moesaic.lab.profile.memory_times import stream_gb_s
from moesaic.lab.profile.timing import min_ns, on_lane
from moesaic.machines.real.copy_engine import Copy, CopyEngine, LinkSpeed
from moesaic.machines.real.lane import InlineLane, Lane, ThreadLane

_PRODUCT = (512, 2048, 2048)  # large enough for the full rate
_COPY_BYTES = 16 << 20
_ATTEMPTS = 5
_STREAM_BYTES = 256 << 20
_PEAK_ITEMS, _SPIN_US = 64, 50.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Ceilings: the best of several attempts each."""

    threads: int
    read_gb_s: float
    tflops: float

    def or_better(self, other: Rates) -> Rates:
        reading = max(self.read_gb_s, other.read_gb_s)
        return Rates(self.threads, reading, max(self.tflops, other.tflops))


@dataclass(frozen=True, slots=True)
class MeasuredRates:
    cpu: Rates
    accelerator: Rates | None = None
    link_gb_s: float | None = None

    def or_better(self, other: MeasuredRates) -> MeasuredRates:
        """What the machine reached at either time: others may have been busy at one of them."""
        cpu = self.cpu.or_better(other.cpu)
        if self.accelerator is None or other.accelerator is None:
            return MeasuredRates(cpu)
        link = max(self.link_gb_s or 0.0, other.link_gb_s or 0.0)
        return MeasuredRates(cpu, self.accelerator.or_better(other.accelerator), link)


def measure_rates(settings: EngineSettings, dtype: str) -> MeasuredRates:
    """With the threads a machine with these settings has."""
    cores = settings.threads or usable_cores()
    if not settings.capabilities.moves:
        torch.set_num_threads(cores)
        return MeasuredRates(_rates(InlineLane(), cores, dtype))
    if settings.capabilities.own_memory:
        return _beside_a_gpu(cores, dtype)
    threads = max(cores - 1, 1)
    cpu, accelerator = ThreadLane("cpu", threads), ThreadLane("accelerator")
    try:
        return MeasuredRates(
            _rates(cpu, threads, dtype),
            _rates(accelerator, 1, dtype),
            _link_gb_s(settings.link_gb_s),
        )
    finally:
        cpu.close()
        accelerator.close()


def _beside_a_gpu(cores: int, dtype: str) -> MeasuredRates:
    device, cpu = DeviceRates.measured(dtype), ThreadLane("cpu", cores)
    try:
        accelerator = Rates(1, device.read_gb_s, device.tflops)
        return MeasuredRates(_rates(cpu, cores, dtype), accelerator, device.link_gb_s)
    finally:
        cpu.close()


def _rates(lane: Lane, threads: int, dtype: str) -> Rates:
    """The better of PyTorch and the native kernels' own workers."""
    measured = Rates(threads, stream_gb_s(lane), _tflops(lane, dtype))
    found = native()
    if found is None or choose() == REFERENCE:
        return measured
    return measured.or_better(_native_rates(found, threads, dtype))


def _native_rates(found: Any, threads: int, dtype: str) -> Rates:
    pool = found.Pool(worker_cores(threads), _SPIN_US)
    memory = torch.ones(_STREAM_BYTES, dtype=torch.uint8)
    at, size = memory.data_ptr(), memory.nbytes
    reading = min(
        pool.stream_seconds(at, size, spread) for _ in range(_ATTEMPTS) for spread in (False, True)
    )
    tflops = 0.0
    if dtype == "bf16" and "amx" in available():
        items = _PEAK_ITEMS * threads
        tflops = (
            items
            * found.peak_item_flops
            / min(pool.peak_seconds(items) for _ in range(_ATTEMPTS))
            / 1e12
        )
    return Rates(threads, size / reading / GB, tflops)


def _tflops(lane: Lane, dtype: str) -> float:
    rows, inner, columns = _PRODUCT
    left = torch.ones((rows, inner), dtype=torch_dtype(dtype))
    right = torch.ones((columns, inner), dtype=torch_dtype(dtype))

    def multiply() -> None:
        linear(left, right)

    work = on_lane(lane, lambda attempt: multiply)
    best = min(min_ns(work, times=1) for _ in range(_ATTEMPTS))
    return 2.0 * rows * inner * columns / best / 1e3


def _link_gb_s(nominal: float) -> float:
    """What copies reach, their fixed latency apart."""
    engine = CopyEngine(LinkSpeed(nominal, 0.0))
    source, target = (torch.ones(_COPY_BYTES, dtype=torch.uint8) for _ in range(2))
    runs = []
    try:
        for _ in range(_ATTEMPTS):
            copy = Copy(Move(0, 0), source, target, "transfer")
            engine.demand([copy])
            copy.wait()
            runs.append(copy.end_ns - copy.start_ns)
    finally:
        engine.close()
    return _COPY_BYTES / min(runs) * NS_PER_S / GB
