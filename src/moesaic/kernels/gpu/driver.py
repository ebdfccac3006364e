"""The few functions of the CUDA driver that PyTorch does not offer: modules, launches of their
kernels, and memory operations of a stream. Calls go to the current context, which is PyTorch's."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import NamedTuple

import torch

from moesaic.core.errors import EngineFailed

WAIT_GEQ = 0x0  # until (value at the address - the value given) >= 0, cyclically


class CudaFailed(EngineFailed):
    """The driver refused a call."""


@cache
def library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise CudaFailed("the CUDA driver (libcuda.so.1) is not installed") from None


def check(result: int, call: str) -> None:
    if result:
        text = ctypes.c_char_p()
        library().cuGetErrorString(result, ctypes.byref(text))
        words = (text.value or b"unknown error").decode()
        raise CudaFailed(f"{call} failed: {words} ({result})")


class _Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D: where rows of both ends begin, in which memory, and how far apart."""

    _fields_ = (
        ("source_x", ctypes.c_size_t), ("source_y", ctypes.c_size_t),
        ("source_kind", ctypes.c_int), ("source_host", ctypes.c_void_p),
        ("source", ctypes.c_uint64), ("source_array", ctypes.c_void_p),
        ("source_pitch", ctypes.c_size_t),
        ("target_x", ctypes.c_size_t), ("target_y", ctypes.c_size_t),
        ("target_kind", ctypes.c_int), ("target_host", ctypes.c_void_p),
        ("target", ctypes.c_uint64), ("target_array", ctypes.c_void_p),
        ("target_pitch", ctypes.c_size_t),
        ("width", ctypes.c_size_t), ("height", ctypes.c_size_t),
    )  # fmt: skip


_UNIFIED = 4  # memory of the address space that GPU and host share: the address says which
_LONGEST_PITCH = (1 << 31) - 1


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16))


class _Launch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )  # fmt: skip


_EARLY = 6  # attribute: programmatic stream serialization
SHARED_BYTES = 48 << 10  # that a block has without asking for more


@cache
def launches_early() -> bool:
    """Whether a kernel can wait for the one in front of it by itself: Hopper and later."""
    major, _ = torch.cuda.get_device_capability()
    return int(major) >= 9


class Function:
    """A kernel of a module."""

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle = handle

    def __call__(
        self,
        grid: tuple[int, ...],
        threads: int,
        *arguments: torch.Tensor | int,
        early: bool = False,
    ) -> None:
        """Launch on the current stream. Arguments are tensors (their addresses) and 64-bit
        integers. `early`: may begin before the kernel in front of it has ended, where the GPU can,
        and waits itself where it needs its results."""
        values = [
            ctypes.c_int64(a.data_ptr() if isinstance(a, torch.Tensor) else a) for a in arguments
        ]
        given = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        launch = _Launch()
        launch.grid = (*grid, *(1,) * (3 - len(grid)))
        launch.block, launch.shared = (threads, 1, 1), 0
        launch.stream = torch.cuda.current_stream().cuda_stream
        attribute = _Attribute(_EARLY, 0)
        attribute.value[0] = 1
        launch.attributes = ctypes.pointer(attribute)
        launch.count = int(early and launches_early())
        result = library().cuLaunchKernelEx(ctypes.byref(launch), self._handle, given, None)
        check(result, "cuLaunchKernelEx")


class Module:
    """Machine code on the current device; stays loaded."""

    def __init__(self, code: bytes) -> None:
        torch.cuda.current_stream()  # makes PyTorch's context current
        torch.cuda.init()
        self._code, self._handle = code, ctypes.c_void_p()
        check(library().cuModuleLoadData(ctypes.byref(self._handle), code), "cuModuleLoadData")

    def function(self, name: str) -> Function:
        found = ctypes.c_void_p()
        result = library().cuModuleGetFunction(ctypes.byref(found), self._handle, name.encode())
        check(result, f"cuModuleGetFunction({name})")
        return Function(found)


def architecture() -> str:
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def current_context() -> int:
    """Address of the context that calls go to."""
    torch.cuda.init()
    found = ctypes.c_void_p()
    check(library().cuCtxGetCurrent(ctypes.byref(found)), "cuCtxGetCurrent")
    return found.value or 0


def write_value(address: int, value: int) -> None:
    """The current stream writes 32 bits when it gets there; what came before it is visible to
    a reader of them."""
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    result = library().cuStreamWriteValue32_v2(
        stream, ctypes.c_uint64(address), ctypes.c_uint32(value), 0
    )
    check(result, "cuStreamWriteValue32")


def wait_value(address: int, value: int) -> None:
    """The current stream waits until 32 bits are at least so much."""
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    result = library().cuStreamWaitValue32_v2(
        stream, ctypes.c_uint64(address), ctypes.c_uint32(value), WAIT_GEQ
    )
    check(result, "cuStreamWaitValue32")


def copy_to_device(target: int, source: int, size: int, stream: int) -> None:
    """Copy from locked host memory; for other host memory the call waits."""
    result = library().cuMemcpyHtoDAsync_v2(
        ctypes.c_uint64(target), ctypes.c_void_p(source), ctypes.c_size_t(size),
        ctypes.c_void_p(stream),
    )  # fmt: skip
    check(result, "cuMemcpyHtoDAsync")


class Rows(NamedTuple):
    """Rows of the same width, so many bytes apart."""

    address: int
    pitch: int


def copy_rows(target: Rows, source: Rows, width: int, height: int, stream: int) -> None:
    """Copy `height` rows of `width` bytes between the GPU and locked host memory, either way."""
    if max(target.pitch, source.pitch) > _LONGEST_PITCH:
        for row in range(height):
            to, of = (Rows(each.address + row * each.pitch, width) for each in (target, source))
            copy_rows(to, of, width, 1, stream)
        return
    copy = _Copy2D(source_kind=_UNIFIED, target_kind=_UNIFIED, width=width, height=height)
    copy.source, copy.source_pitch = source
    copy.target, copy.target_pitch = target
    result = library().cuMemcpy2DAsync_v2(ctypes.byref(copy), ctypes.c_void_p(stream))
    check(result, "cuMemcpy2DAsync")
