"""Instruction sets of the CPU kernels: the best one this CPU supports, unless a setting or the
environment variable MOESAIC_KERNEL names another. Needs no torch.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Collection
from types import ModuleType
from typing import NamedTuple

from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.model_info.expert_block import TILES

REFERENCE = "reference"
PORTABLE = "portable"  # built on request only, see native/CMakeLists.txt
DESCRIPTIONS = {
    "amx": "AMX matrix tiles for many tokens, AVX-512 vectors for few",
    "avx512": "AVX-512 with bf16 and VNNI dot products",
    "avx512-vnni": "AVX-512 with VNNI dot products, bf16 widened to fp32",
    "avx512-base": "AVX-512 without dot products",
    "avx2-vnni": "AVX2 with AVX-VNNI dot products",
    "avx2": "AVX2 and FMA",
    PORTABLE: "the compiler's vectors, slow: to test on other processors what is around them",
    REFERENCE: "PyTorch",
}
# What each asks of the CPU besides AVX2 (native/products/cpu_features.cpp), as Linux names it.
_AVX512 = ("avx512f", "avx512dq", "avx512bw", "avx512vl")
NEEDS = {
    "amx": (*_AVX512, "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"),
    "avx512": (*_AVX512, "avx512_vnni", "avx512_bf16"),
    "avx512-vnni": (*_AVX512, "avx512_vnni"),
    "avx512-base": _AVX512,
    "avx2-vnni": ("avx_vnni",),
    "avx2": ("avx2", "fma", "f16c"),
}
ISA_NUMBERS = {
    **{"amx": 1, "avx512": 2, "avx512-vnni": 5, "avx512-base": 6},
    **{"avx2-vnni": 7, "avx2": 3, PORTABLE: 4},
}
KERNELS = ("auto", *DESCRIPTIONS)
VARIABLE = "MOESAIC_KERNEL"


def native() -> ModuleType | None:
    """The compiled extension, where the package was built with it."""
    try:
        from moesaic.kernels import _native
    except ImportError:
        return None
    return _native


class NotBuilt(NamedTuple):
    """Why this installation has no native kernels, and what to do about it."""

    why: str
    remedy: str


def exist_here() -> bool:
    """Whether there are native kernels for this system and processor (native/CMakeLists.txt)."""
    return sys.platform.startswith("linux") and platform.machine() in ("x86_64", "AMD64")


def why_not_built() -> NotBuilt:
    """The reason that can be found now, which is after the installation."""
    if not exist_here():
        here = f"{platform.system()} on {platform.machine()}"
        why = f"there are none for {here}, only for Linux on x86-64"
        return NotBuilt(why, "nothing can be installed; use a GPU or an x86-64 processor")
    needed = "a C++20 compiler that knows AMX (GCC 11 or later)"
    found = shutil.which(os.environ.get("CXX") or "c++") or shutil.which("g++")
    if found is None:
        why = "they were not built, and there is no C++ compiler"
        return NotBuilt(why, f"install {needed}, then reinstall Moesaic")
    why = f"they were not built: {found} was missing or too old when Moesaic was installed"
    return NotBuilt(why, f"reinstall Moesaic; that needs {needed}")


def available() -> tuple[str, ...]:
    """Supported on this machine, the best first. Of `avx512` and `avx512-vnni` that is the one
    whose bf16 products are faster in a loop on registers, which takes less than a millisecond."""
    module = native()
    found = tuple(module.isas()) if module is not None else ()
    return (*found, REFERENCE)


def choose(wanted: str = "auto") -> str:
    """The name of the kernels that are used."""
    setting = "kernel"
    if wanted == "auto" and os.environ.get(VARIABLE):
        setting, wanted = VARIABLE, os.environ[VARIABLE]
    if wanted not in KERNELS:
        raise UnknownName(setting, wanted, KERNELS)
    supported = available()
    if wanted == "auto":
        return supported[0]
    if wanted not in supported:
        missing = (
            "this CPU has not got them" if native() else "the package was installed without them"
        )
        raise ImpossibleSetting(
            f"{setting} {wanted!r} needs {DESCRIPTIONS[wanted]}, but {missing}: use "
            f"{', '.join(supported)} or auto"
        )
    return wanted


def has_native(wanted: str, dtype: str) -> bool:
    """Whether experts in this precision have native kernels, but for some shapes
    (`ExpertShape.unusual`)."""
    return dtype in TILES and choose(wanted) != REFERENCE


def next_better(name: str) -> str | None:
    """The next better set of those that a package is built with by default."""
    names = [each for each in DESCRIPTIONS if each != PORTABLE or name == PORTABLE]
    return names[names.index(name) - 1] if name != names[0] else None


def missing_for_better(name: str, isa: Collection[str]) -> list[str]:
    """Instructions that the next better kernels need and this CPU, which has `isa`, has not."""
    better = next_better(name)  # nothing is missing where it is supported, but slower
    return [] if better is None else [each for each in NEEDS[better] if each not in isa]


def kernel_description(name: str, isa: Collection[str] | None = None) -> str:
    """The kernels used, and why no better ones are; `isa` are the CPU's instructions, if known."""
    text = f"{name}: {DESCRIPTIONS[name]}"
    better = next_better(name)
    if better is None:
        return text
    if native() is None:
        return f"{text} (native kernels: {why_not_built().why})"
    best = available()[0]
    if name != best:
        return f"{text} (this CPU could use {best})"
    return f"{text} ({_why_not(name, better, isa)})"


def _why_not(name: str, better: str, isa: Collection[str] | None) -> str:
    """Why the best kernels here are not the next better ones."""
    if better in available():
        return f"faster here than {better}: measured by loops on registers"
    if isa is None:
        return f"this CPU cannot use {better}"
    missing = missing_for_better(name, isa)
    if missing:
        return f"{better} needs {', '.join(missing)}, which this CPU has not got"
    return f"this CPU has what {better} needs, but the system does not allow its use"
