"""CUDA sources compiled at run time with NVRTC, which comes with PyTorch's CUDA builds, and loaded
and launched through the driver: nothing is compiled when the package is installed."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from moesaic.core.caches import writable_cache
from moesaic.core.errors import EngineFailed


class CompilationFailed(EngineFailed):
    """A CUDA source does not compile."""


@cache
def find_compiler() -> ctypes.CDLL:
    """NVRTC as PyTorch finds it, or the system's."""
    for name in ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"):
        for folder in ("", *map(str, _package_folders())):
            try:
                return ctypes.CDLL(str(Path(folder) / name) if folder else name)
            except OSError:
                continue
    raise CompilationFailed(
        "CUDA's run-time compiler (libnvrtc) was not found: install a CUDA build of PyTorch"
    )


def _package_folders() -> list[Path]:
    try:
        import nvidia
    except ImportError:
        return []
    return [p for root in nvidia.__path__ for p in Path(root).glob("*/lib")]


HEADERS = (  # that sources may include
    "activation.h", "cached_row.h", "codes.h", "device.h", "flags.h", "numbers.h", "packed.h",
    "reads.h", "router.h", "row_reads.h", "scaled_codes.h", "tensor_cores.h",
)  # fmt: skip


def _source(file: str) -> str:
    return (resources.files(__package__) / "source" / file).read_text()


def compile_source(name: str, defines: Mapping[str, int | float], architecture: str) -> bytes:
    """Machine code of `source/NAME.cu` for an architecture such as "sm_90", with macros set."""
    text, headers = _source(f"{name}.cu"), [_source(file) for file in HEADERS]
    options = [f"--gpu-architecture={architecture}", "--std=c++17"]
    options += [f"-D{key}={value}" for key, value in sorted(defines.items())]
    key = hashlib.sha256("\0".join([text, *headers, *options]).encode()).hexdigest()[:32]
    folder = writable_cache()
    if folder is None:
        return _compile(name, text, headers, options)
    kept = folder / "cuda" / f"{name}-{key}.cubin"
    if kept.exists():
        return kept.read_bytes()
    code = _compile(name, text, headers, options)
    kept.parent.mkdir(parents=True, exist_ok=True)
    partial = kept.with_suffix(f".{id(code)}.part")
    partial.write_bytes(code)
    partial.replace(kept)
    return code


def _compile(name: str, text: str, headers: Sequence[str], options: Sequence[str]) -> bytes:
    nvrtc = find_compiler()
    program = ctypes.c_void_p()
    _check(nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), text.encode(), f"{name}.cu".encode(),
        len(headers), _strings(headers), _strings(HEADERS),
    ))  # fmt: skip
    try:
        if nvrtc.nvrtcCompileProgram(program, len(options), _strings(options)):
            log = _fetched(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
            raise CompilationFailed(f"{name}.cu does not compile:\n{log.decode(errors='replace')}")
        return _fetched(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _strings(texts: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))


def _fetched(size_of: Any, fetch: Any, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(size_of(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(fetch(program, buffer))
    return buffer.raw


def _check(result: int) -> None:
    if result:
        raise CompilationFailed(f"NVRTC failed with code {result}")
