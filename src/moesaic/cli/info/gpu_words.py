"""NVIDIA's GPUs in the words of `moesaic doctor`."""

from __future__ import annotations

from moesaic.hardware.nvidia import NvidiaDriver, NvidiaGpu


def gpus_in_words(driver: NvidiaDriver) -> str:
    if not driver.gpus:
        return f"none found: {driver.problem}"
    listed = ", ".join(_gpu_in_words(gpu) for gpu in driver.gpus)
    return f"{listed}; driver for CUDA {driver.version or 'of unknown version'}"


def accelerator_in_words(driver: NvidiaDriver, problem: str | None) -> str:
    if problem is not None:
        return f"none ({problem}); an emulated one with --accelerator emulated"
    return f"{driver.gpus[0].name}, used unless --accelerator none is given"


def _gpu_in_words(gpu: NvidiaGpu) -> str:
    able = "with" if gpu.stream_memory_operations else "without"
    return f"{gpu.name}, {gpu.memory_bytes / 1e9:.1f} GB, {able} stream memory operations"
