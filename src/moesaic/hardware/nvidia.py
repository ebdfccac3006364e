"""NVIDIA GPUs as the driver describes them, and whether PyTorch can use one. Needs no torch: the
driver's library is asked directly, and no context is made on a GPU."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from ctypes.util import find_library
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from re import MULTILINE, search

_LIBRARY = "libcuda.so.1"
_NAME_BYTES = 128
# CAN_USE_64_BIT_STREAM_MEM_OPS, and its name before CUDA 12.
_STREAM_MEMORY_OPERATIONS = (122, 92)
_MAJOR, _MINOR = 75, 76  # of the compute capability
_LEAST_MAJOR = 8  # bf16 in tensor cores
_NVRTC = "libnvrtc[.-]*so*"
_NVIDIA, _DISPLAY = "0x10de", "0x03"  # vendor and class of a PCI device


@dataclass(frozen=True, slots=True)
class NvidiaGpu:
    name: str
    memory_bytes: int
    stream_memory_operations: bool  # streams can wait for and write flags in pinned memory
    capability: tuple[int, int] = (0, 0)  # of computing; zeros: not known


@dataclass(frozen=True, slots=True)
class NvidiaDriver:
    """`problem` says why there are no GPUs."""

    version: str | None  # the newest CUDA that it supports
    gpus: tuple[NvidiaGpu, ...] = ()
    problem: str | None = None


@cache
def nvidia_driver() -> NvidiaDriver:
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return NvidiaDriver(None, problem=f"NVIDIA's driver ({_LIBRARY}) is not installed")
    result = library.cuInit(0)
    version = _version(library)
    if result:
        return NvidiaDriver(version, problem=f"NVIDIA's driver finds no GPU (cuInit: {result})")
    gpus = tuple(_gpus(library))
    return NvidiaDriver(version, gpus, None if gpus else "NVIDIA's driver finds no GPU")


def cuda_problem() -> str | None:
    """Why PyTorch cannot use a GPU here, and what to do; None: it can, as far as can be seen
    without loading it."""
    driver = nvidia_driver()
    if driver.problem is not None:
        return f"{driver.problem}: install the driver, or use a machine with a GPU"
    if find_spec("torch") is None:
        return "PyTorch is not installed: pip install 'moesaic[engine]'"
    if not torch_has_cuda():
        return "PyTorch was built without CUDA: install a CUDA build (https://pytorch.org)"
    return _too_old(driver.version, torch_cuda_version()) or _incapable(driver.gpus[0])


def _incapable(gpu: NvidiaGpu) -> str | None:
    major, minor = gpu.capability
    if major == 0 or major >= _LEAST_MAJOR:
        return None
    return (
        f"{gpu.name} is too old (compute capability {major}.{minor}): the kernels need "
        f"{_LEAST_MAJOR}.0, Ampere, or later. Use --accelerator none, or a newer GPU"
    )


def compiler_problem() -> str | None:
    """Why the GPU's kernels cannot be compiled here, as far as files tell; None: they can. Kernels
    are compiled by NVRTC and by Triton when they are first used."""
    if find_spec("triton") is None:
        return "Triton is not installed, which compiles the GPU's kernels: pip install triton"
    found = any(next(folder.glob(_NVRTC), None) for folder in _library_folders())
    if found or find_library("nvrtc") is not None:
        return None
    return "CUDA's run-time compiler (libnvrtc) was not found: install a CUDA build of PyTorch"


def _library_folders() -> Iterator[Path]:
    """The folders in which a CUDA build of PyTorch, from pip or conda, has its libraries."""
    torch, packages = find_spec("torch"), find_spec("nvidia")
    if torch is not None and torch.origin is not None:
        yield Path(torch.origin).parent / "lib"
    for root in [] if packages is None else packages.submodule_search_locations or []:
        yield from Path(root).glob("*/lib")
    yield Path(sys.prefix) / "lib"


def card_on_bus(root: Path = Path("/")) -> bool:
    """Whether an NVIDIA display adapter is on the PCI bus, whatever the driver says."""
    for device in (root / "sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
        except OSError:
            continue
        if vendor == _NVIDIA and kind.startswith(_DISPLAY):
            return True
    return False


def torch_has_cuda() -> bool:
    """Whether the installed PyTorch is a CUDA build, by its libraries."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return False
    return any((Path(found.origin).parent / "lib").glob("libtorch_cuda*"))


def torch_cuda_version() -> str | None:
    """The CUDA that the installed PyTorch was built for, as its files say; None: they do not."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return None
    try:
        text = (Path(found.origin).parent / "version.py").read_text()
    except OSError:
        return None
    stated = search(r"^cuda[^=]*=\s*['\"]([0-9.]+)['\"]", text, MULTILINE)
    return None if stated is None else stated.group(1)


def _too_old(driver: str | None, needed: str | None) -> str | None:
    """A driver serves every CUDA of its major version, and older ones."""
    if driver is None or needed is None:
        return None
    if int(driver.partition(".")[0]) >= int(needed.partition(".")[0]):
        return None
    return (
        f"NVIDIA's driver is too old, for CUDA {driver}, and PyTorch was built for {needed}: "
        "update the driver, or install an older build of PyTorch"
    )


def _version(library: ctypes.CDLL) -> str | None:
    number = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(number)):
        return None
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def _gpus(library: ctypes.CDLL) -> Iterator[NvidiaGpu]:
    count = ctypes.c_int()
    if library.cuDeviceGetCount(ctypes.byref(count)):
        return
    for number in range(count.value):
        device, size = ctypes.c_int(), ctypes.c_size_t()
        name = ctypes.create_string_buffer(_NAME_BYTES)
        library.cuDeviceGet(ctypes.byref(device), number)
        library.cuDeviceGetName(name, _NAME_BYTES, device)
        library.cuDeviceTotalMem_v2(ctypes.byref(size), device)
        able = any(_attribute(library, which, device) for which in _STREAM_MEMORY_OPERATIONS)
        capability = (_attribute(library, _MAJOR, device), _attribute(library, _MINOR, device))
        yield NvidiaGpu(name.value.decode(), size.value, able, capability)


def _attribute(library: ctypes.CDLL, which: int, device: ctypes.c_int) -> int:
    value = ctypes.c_int()
    failed = library.cuDeviceGetAttribute(ctypes.byref(value), which, device)
    return 0 if failed else value.value
