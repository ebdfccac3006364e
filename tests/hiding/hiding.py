"""Hides compiled modules from imports, so that a machine that has them tests what happens on one
without: `_native` is built for x86-64 only, and without a compiler `_conductor` is missing, too.

`MOESAIC_TESTS_HIDE=native` (as on ARM) or `native,conductor` (as without a compiler)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

VARIABLE = "MOESAIC_TESTS_HIDE"
MODULES = {
    "native": "moesaic.kernels._native",
    "conductor": "moesaic.machines.captured._conductor",
}


class _Hidden:
    """An importer that is asked before all others."""

    def __init__(self, modules: Sequence[str]) -> None:
        self.modules = modules

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in self.modules:
            raise ModuleNotFoundError(f"{name} is hidden by {VARIABLE}", name=name)


def hide() -> None:
    """Hide the modules that the environment names, here and in processes that this one starts
    (`sitecustomize.py`, beside this file, is imported by every Python that finds it)."""
    names = [name for name in os.environ.get(VARIABLE, "").split(",") if name]
    if not names or any(isinstance(each, _Hidden) for each in sys.meta_path):
        return
    sys.meta_path.insert(0, _Hidden([MODULES[name] for name in names]))
    folder = str(Path(__file__).parent)
    others = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    if folder not in others:
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *others])
