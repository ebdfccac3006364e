"""What this machine reaches at best, measured with the threads that a bench uses: reading memory,
multiplying matrices, copying over the link.

The ceiling of multiplying is the processor's, by loops on registers, never a library's: a library
may be slow here, and a floor computed from it would be beaten. Only where the native module is
missing is a library's product all there is, and the unit says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from moesaic.core.layer_plan import Move
from moesaic.core.units import GB, NS_PER_S
from moesaic.engine.engine_settings import EngineSettings
from moesaic.hardware.caches import stream_bytes
from moesaic.hardware.host import usable_cores
from moesaic.kernels.cores import worker_cores
from moesaic.kernels.dtypes import torch_dtype
from moesaic.kernels.instruction_sets import native
from moesaic.kernels.products import linear
from moesaic.lab.bench.device_rates import DeviceRates
from moesaic.lab.profile.memory_times import stream_gb_s
from moesaic.lab.profile.timing import min_ns, on_lane
from moesaic.machines.real.copy_engine import Copy, CopyEngine, LinkSpeed
from moesaic.machines.real.lane import InlineLane, Lane, ThreadLane

_COPY_BYTES = 16 << 20
_ATTEMPTS = 5
_SPIN_US = 50.0
LIBRARY = "PyTorch's product, not the processor's peak"
# Units that may multiply activations of a precision, and what experts are stored in.
_UNITS = {"fp32": ("fp32",), "bf16": ("fp32", "bf16"), "fp16": ("fp32", "bf16")}
_CODED = ("int8", "int4")
_ROWS, _WIDTH = (8, 64, 512), 2048  # the last is large enough for the full rate
_ENOUGH_NS = 50_000_000  # a product that takes longer says what a larger one would
_ITEMS = 64


@dataclass(frozen=True, slots=True)
class Rates:
    """Ceilings: the best of several attempts each."""

    threads: int
    read_gb_s: float
    tflops: float
    unit: str = ""  # what multiplies at that rate

    def or_better(self, other: Rates) -> Rates:
        reading, faster = max(self.read_gb_s, other.read_gb_s), self
        if other.tflops > self.tflops:
            faster = other
        return Rates(self.threads, reading, faster.tflops, faster.unit)


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


def measure_rates(
    settings: EngineSettings, dtype: str, expert_dtype: str = "auto"
) -> MeasuredRates:
    """Measure with the threads of a machine with these settings; experts may have another
    precision."""
    cores = settings.threads or usable_cores()
    if not settings.capabilities.moves:
        torch.set_num_threads(cores)
        return MeasuredRates(_rates(InlineLane(), cores, dtype, expert_dtype))
    if settings.capabilities.own_memory:
        return _beside_a_gpu(cores, dtype, expert_dtype)
    threads = max(cores - 1, 1)
    cpu, accelerator = ThreadLane("cpu", threads), ThreadLane("accelerator")
    try:
        return MeasuredRates(
            _rates(cpu, threads, dtype, expert_dtype),
            _rates(accelerator, 1, dtype, expert_dtype),
            _link_gb_s(settings.link_gb_s),
        )
    finally:
        cpu.close()
        accelerator.close()


def _beside_a_gpu(cores: int, dtype: str, expert_dtype: str) -> MeasuredRates:
    device, cpu = DeviceRates.measured(dtype), ThreadLane("cpu", cores)
    try:
        accelerator = Rates(1, device.read_gb_s, device.tflops, "cuBLAS's product")
        cpu_rates = _rates(cpu, cores, dtype, expert_dtype)
        return MeasuredRates(cpu_rates, accelerator, device.link_gb_s)
    finally:
        cpu.close()


def _rates(lane: Lane, threads: int, dtype: str, expert_dtype: str) -> Rates:
    """Reading by the better of PyTorch and the native kernels' own workers."""
    reading = stream_gb_s(lane)
    if (found := native()) is not None:
        reading = max(reading, _native_stream_gb_s(found, threads))
    tflops, unit = compute_peak(lane, threads, dtype, expert_dtype)
    return Rates(threads, reading, tflops, unit)


def _native_stream_gb_s(found: Any, threads: int) -> float:
    pool = found.Pool(worker_cores(threads), _SPIN_US)
    memory = torch.ones(stream_bytes(), dtype=torch.uint8)
    at, size = memory.data_ptr(), memory.nbytes
    seconds: float = min(
        pool.stream_seconds(at, size, spread) for _ in range(_ATTEMPTS) for spread in (False, True)
    )
    return float(size / seconds / GB)


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


def compute_peak(lane: Lane, threads: int, dtype: str, expert_dtype: str) -> tuple[float, str]:
    """TFLOPS of so many threads, and the unit that reaches them."""
    found = native()
    units = {} if found is None else usable_units(found.peaks(), dtype, expert_dtype)
    if found is None or not units:
        return _library_tflops(lane, dtype), LIBRARY
    return processor_peak(found, units, threads)


def usable_units(units: dict[str, float], dtype: str, expert_dtype: str) -> dict[str, float]:
    """The processor's units (operations per item by name, as in "bf16-amx") that can
    multiply in these precisions."""
    kinds = (*_UNITS[dtype], *(("int8",) if expert_dtype in _CODED else ()))
    return {name: ops for name, ops in units.items() if name.partition("-")[0] in kinds}


def processor_peak(found: Any, units: dict[str, float], threads: int) -> tuple[float, str]:
    pool, items = found.Pool(worker_cores(threads), _SPIN_US), _ITEMS * threads
    rates = {
        unit: items * ops / min(pool.peak_seconds(unit, items) for _ in range(_ATTEMPTS)) / 1e12
        for unit, ops in units.items()
    }
    best = max(rates, key=rates.__getitem__)
    return rates[best], f"{best} peak"


def _library_tflops(lane: Lane, dtype: str) -> float:
    """The rate of the largest product that is quick: where a library has no instructions for a
    precision, as for fp16 on many processors, a large one takes half a minute."""
    for rows in _ROWS:
        best = _product_ns(lane, rows, dtype)
        if best > _ENOUGH_NS:
            break
    else:
        best = min(best, *(_product_ns(lane, rows, dtype) for _ in range(_ATTEMPTS - 1)))
    return 2.0 * rows * _WIDTH * _WIDTH / best / 1e3


def _product_ns(lane: Lane, rows: int, dtype: str) -> int:
    left = torch.ones((rows, _WIDTH), dtype=torch_dtype(dtype))
    right = torch.ones((_WIDTH, _WIDTH), dtype=torch_dtype(dtype))

    def multiply() -> None:
        linear(left, right)

    return min_ns(on_lane(lane, lambda attempt: multiply), times=1)
