"""Instruction sets of the CPU kernels: the best one this CPU supports, unless a setting or the
environment variable MOESAIC_KERNEL names another. Needs no torch.
"""

from __future__ import annotations

import os
from types import ModuleType

from moesaic.core.errors import ImpossibleSetting, UnknownName

REFERENCE = "reference"
DESCRIPTIONS = {
    "amx": "AMX matrix tiles for many tokens, AVX-512 vectors for few",
    "avx512": "AVX-512 with bf16 and VNNI dot products",
    "avx2": "AVX2 and FMA",
    REFERENCE: "PyTorch",
}
ISA_NUMBERS = {"amx": 1, "avx512": 2, "avx2": 3}
KERNELS = ("auto", *DESCRIPTIONS)
VARIABLE = "MOESAIC_KERNEL"


def native() -> ModuleType | None:
    """The compiled extension, where the package was built with it."""
    try:
        from moesaic.kernels import _native
    except ImportError:
        return None
    return _native


def available() -> tuple[str, ...]:
    """Supported on this machine, the best first."""
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


def kernel_description(name: str) -> str:
    """The kernels used, and why no better ones are."""
    text = f"{name}: {DESCRIPTIONS[name]}"
    if name == "amx":
        return text
    if native() is None:
        return f"{text} (the native kernels were not built: installing needs a C++20 compiler)"
    best = available()[0]
    if name != best:
        return f"{text} (this CPU could use {best})"
    return f"{text} (no {'AVX2' if name == REFERENCE else 'AMX'} here)"
