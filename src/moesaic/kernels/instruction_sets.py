"""Which instructions the CPU's experts are computed with.

The best this CPU has, unless a setting or the environment variable MOESAIC_KERNEL names another.
Needs no torch.
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
    """What works here, the best first."""
    module = native()
    found = tuple(module.isas()) if module is not None else ()
    return (*found, REFERENCE)


def choose(wanted: str = "auto") -> str:
    """The name of what is used."""
    asked = "kernel"
    if wanted == "auto" and os.environ.get(VARIABLE):
        asked, wanted = VARIABLE, os.environ[VARIABLE]
    if wanted not in KERNELS:
        raise UnknownName(asked, wanted, KERNELS)
    here = available()
    if wanted == "auto":
        return here[0]
    if wanted not in here:
        missing = (
            "this CPU has not got them" if native() else "the package was installed without them"
        )
        raise ImpossibleSetting(
            f"{asked} {wanted!r} needs {DESCRIPTIONS[wanted]}, but {missing}: use "
            f"{', '.join(here)} or auto"
        )
    return wanted


def in_words(name: str) -> str:
    """What is used, and why nothing better is."""
    words = f"{name}: {DESCRIPTIONS[name]}"
    if name == "amx":
        return words
    if native() is None:
        return f"{words} (the native kernels were not built: installing needs a C++20 compiler)"
    here = available()
    if name != here[0]:
        return f"{words} (this CPU could use {here[0]})"
    return f"{words} (no {'AVX2' if name == REFERENCE else 'AMX'} here)"
