"""The environment: optional packages, this machine's description, the compile cache.

Looks and reports; imports none of the packages and changes nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from moesaic.core.errors import MoesaicError
from moesaic.core.folders import cache_folder
from moesaic.hardware.machine_reader import EMULATED, THIS, load_machine, machine_file
from moesaic.kernels.instruction_sets import choose as choose_kernel


class Package(NamedTuple):
    without: str | None  # what does not work without it; None: nothing
    install: str


_ENGINE = "pip install 'moesaic[engine]'"
PACKAGES = {
    "torch": Package("models can be simulated, but not run", _ENGINE),
    "tokenizers": Package("text cannot be turned into tokens", _ENGINE),
    "jinja2": Package("chat templates cannot be applied", "pip install jinja2"),
    "llguidance": Package("answers cannot be held to a schema or a grammar", _ENGINE),
    "safetensors": Package(None, "pip install safetensors"),  # checkpoints: our own reader
    "matplotlib": Package("no pictures can be drawn", "pip install 'moesaic[plot]'"),
    "scipy": Package("the schedule `optimal` cannot run", "pip install 'moesaic[optimal]'"),
}


@dataclass(frozen=True, slots=True)
class Environment:
    packages: dict[str, str | None]  # of `PACKAGES`: the installed version
    machine_file: Path
    measured: bool  # whether the file is there
    machine_problem: str | None  # why it cannot be used although it is there
    emulated_measured: bool  # whether it is also described with an emulated accelerator
    kernel: str  # what the CPU computes experts with
    cache_folder: Path  # of compiled policies
    cache_writable: bool


def inspect_environment() -> Environment:
    measured, problem = _machine()
    folder = compiled_folder()
    return Environment(
        packages={name: _version(name) for name in PACKAGES},
        machine_file=machine_file(),
        measured=measured,
        machine_problem=problem,
        emulated_measured=os.path.lexists(machine_file(EMULATED)),
        kernel=choose_kernel(),
        cache_folder=folder,
        cache_writable=_writable(folder),
    )


def compiled_folder() -> Path:
    """Where `policies/compiled.py` keeps machine code; asking it would load the compiler."""
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(chosen)
    return cache_folder() / "compiled"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _machine() -> tuple[bool, str | None]:
    """Whether this machine's description is there, and what is wrong with it."""
    if not os.path.lexists(machine_file()):
        return False, None
    try:
        load_machine(THIS)
    except (MoesaicError, OSError) as error:
        return True, str(error)
    return True, None


def _writable(folder: Path) -> bool:
    """Whether files could be made there, the folder being made first where it is missing."""
    there = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), folder)
    return os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)
