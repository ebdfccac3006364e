"""Measures a machine with a GPU, all of it, after checking that there is memory for that."""

from __future__ import annotations

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.units import GB
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.gpu_memory import accelerator_free
from moesaic.engine.make_machine import GPU_DEVICE
from moesaic.hardware.host import memory
from moesaic.hardware.nvidia import nvidia_driver
from moesaic.lab.bench.device_rates import DeviceRates
from moesaic.lab.profile import cuda_times
from moesaic.lab.profile.cuda_description import CudaProfile
from moesaic.lab.profile.cuda_times import Progress, measure_cuda
from moesaic.lab.profile.memory_times import stream_gb_s
from moesaic.machines.real.lane import ThreadLane
from moesaic.models.configs.synthetic_architecture import synthetic_architecture

_MORE_BYTES = 3 * GB  # than experts: dense weights, workspaces, what rates are measured with
_LEAST_LAYERS = 4
_HOST_SHARE = 2  # experts may take one part in so many of the host's memory


def profile_cuda(
    settings: EngineSettings,
    threads: int,
    progress: Progress = lambda words: None,
    device: str = GPU_DEVICE,
    scale: int = 1,
    layerwise: bool = False,
) -> CudaProfile:
    """`scale` divides the sizes that rates are measured with, for tests without a GPU."""
    layers = check_memory(settings)
    progress("what memories reach at best")
    rates = DeviceRates.measured("bf16", device, scale)
    lane = ThreadLane("cpu", threads)
    try:
        reading = stream_gb_s(lane)
    finally:
        lane.close()
    times = measure_cuda(settings, threads, progress, device, layerwise, layers)
    gpus = nvidia_driver().gpus
    size = gpus[0].memory_bytes if gpus else round(8 * GB)
    return CudaProfile(times, rates.read_gb_s, reading, size)


def check_memory(settings: EngineSettings) -> int:
    """How many layers of the measured model there is memory for, here and on the GPU; refuses to
    measure with too few, and says which of them is short."""
    free, (_, available) = accelerator_free(settings), memory()
    spec = synthetic_architecture(cuda_times.MODEL, cuda_times.LAYERS).spec
    layer = spec.num_experts * spec.expert_bytes("bf16")
    least, most = min(_LEAST_LAYERS, spec.num_moe_layers), spec.num_moe_layers
    if free is not None:
        _check_enough("GPU memory", least * layer + _MORE_BYTES, free, "end other programs there")
        most = min(most, int(free - _MORE_BYTES) // layer)
    if available is not None:
        closing = "end other programs, or raise the limit of this container"
        _check_enough("main memory", least * layer * _HOST_SHARE, available, closing)
        most = min(most, available // _HOST_SHARE // layer)
    return most


def _check_enough(which: str, needed: int, found: int, do: str) -> None:
    if found < needed:
        raise ImpossibleSetting(
            f"measuring with the GPU needs {needed / GB:.1f} GB of {which}, and {found / GB:.1f} "
            f"GB are free: {do}, or measure without the GPU (--accelerator none)"
        )
