"""CUDA sources compiled for the CPU, to see what their kernels compute where there is no GPU."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

import torch

from moesaic.kernels.gpu.nvrtc import HEADERS

COMPILER = shutil.which("g++")
_HERE = Path(__file__).parent
_READ_ONCE = re.compile(r"uint4 v;\s*asm volatile\(.*?\);", re.DOTALL)
_LAUNCHES = re.compile(r"asm volatile\(\"griddepcontrol.*?\);")


def compiled(
    name: str, defines: Mapping[str, int | float], kernels: Sequence[str], folder: Path
) -> ctypes.CDLL:
    """`source/NAME.cu` with macros set; PTX instructions are replaced by what they do."""
    source = resources.files("moesaic.kernels.gpu") / "source"
    for file in (*HEADERS, f"{name}.cu"):
        text = (source / file).read_text()
        text = _READ_ONCE.sub("uint4 v = *at;", text)
        (folder / file).write_text(_LAUNCHES.sub("", text))
    shutil.copy(_HERE / "tensor_cores_on_host.h", folder / "tensor_cores.h")
    entries = [
        f'extern "C" void run_{kernel}(unsigned x, unsigned y, unsigned n, const std::int64_t* a) '
        f"{{ run<{kernel}>(x, y, n, a); }}"
        for kernel in kernels
    ]
    main, library = folder / f"{name}.cpp", folder / f"{name}.so"
    main.write_text("\n".join([f'#include "{name}.cu"', *entries]))
    macros = [f"-D{key}={value}" for key, value in defines.items()]
    subprocess.run(
        [
            *(str(COMPILER), "-std=c++17", "-O1", "-w", "-shared", "-fPIC"),
            *("-fno-gnu-unique", *macros),
            *("-include", str(_HERE / "cuda_on_host.h"), str(main), "-o", str(library)),
        ],
        check=True,
    )
    return ctypes.CDLL(str(library))


def launch(
    library: ctypes.CDLL,
    kernel: str,
    grid: tuple[int, int],
    threads: int,
    *arguments: torch.Tensor | int,
) -> None:
    values = [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in arguments]
    given = (ctypes.c_int64 * len(values))(*values)
    getattr(library, f"run_{kernel}")(*grid, threads, given)
