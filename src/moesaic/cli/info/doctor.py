"""`moesaic doctor`: what this machine has, what Moesaic will use of it, what is missing.

It looks at the optional packages, the description of this machine and the compile cache; it imports
none of the packages and changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import click

from moesaic.cli.shared.output import print_json
from moesaic.core.errors import MoesaicError
from moesaic.core.folders import cache_folder
from moesaic.hardware.host import Host, this_host
from moesaic.hardware.identity import changes_since
from moesaic.hardware.machine_reader import CUDA, EMULATED, THIS, load_machine, machine_file
from moesaic.hardware.nvidia import NvidiaDriver, NvidiaGpu, cuda_problem, nvidia_driver
from moesaic.kernels.instruction_sets import (
    REFERENCE,
    VARIABLE,
    exist_here,
    kernel_description,
    missing_for_better,
    native,
    why_not_built,
)
from moesaic.kernels.instruction_sets import choose as choose_kernel

_HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
_HUGE_PAGES_MEAN = {
    "always": "always: given to every program",
    "madvise": "madvise: given to programs that ask",
    "never": "never",
}


class MissingItem(NamedTuple):
    """Something missing; `about` is a word that stays the same from version to version."""

    about: str
    what: str
    remedy: str


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool) -> None:
    """Say what this machine has, what will be used of it, and what is missing.

    Measures no more than which of two instruction sets is faster (a millisecond) and changes
    nothing; things that are missing are no error."""
    host, environment = this_host(), inspect_environment()
    driver, problem = nvidia_driver(), cuda_problem()
    used = what_is_used(host, environment, problem)
    missing = list(what_is_missing(host, environment, driver, problem))
    if as_json:
        items = [item._asdict() for item in missing]
        machine = {**asdict(host), "nvidia": asdict(driver)}
        print_json({"machine": machine, "used": used, "missing": items})
        return
    _section("What this machine has", _host_texts(host, driver))
    click.echo()
    _section("What will be used", _use_texts(used, host, accelerator_text(driver, problem)))
    click.echo("\nWhat is missing")
    for item in missing:
        click.echo(f"  {item.what}\n    -> {item.remedy}")
    if not missing:
        click.echo("  nothing")


def what_is_used(host: Host, environment: Environment, gpu_problem: str | None) -> dict[str, Any]:
    usable = environment.measured and environment.machine_problem is None
    return {
        "cpu_kernel": environment.kernel if environment.packages["torch"] else None,
        "better_kernel_needs": missing_for_better(environment.kernel, host.isa),
        "accelerator": None if gpu_problem else "cuda",  # what --accelerator auto takes
        "expert_memory_bytes": host.available_bytes,
        "huge_pages": host.huge_pages_on_request,
        "machine_description": str(environment.machine_file) if usable else None,
        "packages": environment.packages,
    }


def what_is_missing(
    host: Host, environment: Environment, driver: NvidiaDriver, gpu_problem: str | None
) -> Iterator[MissingItem]:
    for name, found in environment.packages.items():
        package = PACKAGES[name]
        if found is None and package.without is not None:
            yield MissingItem(name, f"{name} is not installed: {package.without}", package.install)
    if environment.kernel == REFERENCE:
        yield _missing_kernel(host)
    if gpu_problem is not None and (host.gpus or driver.gpus):  # without one, nothing is missing
        what, _, remedy = gpu_problem.partition(": ")
        yield MissingItem("gpu", f"the GPU cannot be used: {what}", remedy)
    yield from _missing_profile(environment)
    if gpu_problem is None:
        yield from _missing_gpu_profile(host, environment, driver)
    yield from _missing_huge_pages(host)
    if not environment.cache_writable:
        what = f"compiled policies cannot be kept in {environment.cache_folder}"
        remedy = "make it a folder you may write to, or set MOESAIC_CACHE to another one"
        instead = "runs keep them in a temporary folder, or compile them again"
        yield MissingItem("compiled-cache", f"{what}: {instead}", remedy)


def _missing_kernel(host: Host) -> MissingItem:
    what = "experts are computed by PyTorch, several times slower than by the native kernels"
    missing = missing_for_better(REFERENCE, host.isa) if exist_here() else []
    if missing:
        lacking = f"this CPU has not got {', '.join(missing)}"
        return MissingItem("kernels", f"{what}: {lacking}", "use another CPU")
    if native() is None:
        why, remedy = why_not_built()
        return MissingItem("kernels", f"{what}: {why}", remedy)
    return MissingItem("kernels", f"{what}, as {VARIABLE} asks", f"unset {VARIABLE}")


def _missing_profile(environment: Environment) -> Iterator[MissingItem]:
    if not environment.measured:
        what = "this machine is not measured: predictions for it cannot be made"
        yield MissingItem("profile", what, "run `moesaic profile`")
    elif environment.machine_problem is not None:
        remedy = "correct the file, or run `moesaic profile` to write it again"
        yield MissingItem("profile", environment.machine_problem, remedy)
    if environment.measured and not environment.emulated_measured:
        what = (
            f"this machine with an emulated accelerator ({EMULATED}) is not measured: `moesaic "
            "profile` was interrupted before it, or asked for the other only"
        )
        yield MissingItem("profile-emulated", what, "run `moesaic profile --accelerator emulated`")


def _missing_gpu_profile(
    host: Host, environment: Environment, driver: NvidiaDriver
) -> Iterator[MissingItem]:
    """Runs then measure costs when they start, which takes longer and is disturbed more easily."""
    remedy = "run `moesaic profile --accelerator cuda`"
    try:
        spec = load_machine(CUDA) if machine_file(CUDA).is_file() else None
    except MoesaicError as error:
        yield MissingItem("profile-cuda", str(error), remedy)
        return
    if spec is None:
        what = f"this machine with its GPU ({CUDA}) is not measured: every run measures it again"
        yield MissingItem("profile-cuda", what, remedy)
        return
    changed = changes_since(spec, host, driver, spec.cpu.cores, environment.kernel)
    if changed:
        what = f"the description of this machine with its GPU is outdated: {'; '.join(changed)}"
        yield MissingItem("profile-cuda", what, remedy)


def _missing_huge_pages(host: Host) -> Iterator[MissingItem]:
    if host.huge_pages == "never":
        what = "huge pages are switched off: experts in memory are read more slowly"
        remedy = f"echo madvise | sudo tee {_HUGE_PAGES} (until the next start of the system)"
        yield MissingItem("huge-pages", what, remedy)
    elif host.huge_pages is not None and not host.huge_pages_on_request:
        what = "huge pages are switched off for this process by the program that started it"
        yield MissingItem("huge-pages", what, "start it from another shell, or change that program")


def _host_texts(host: Host, driver: NvidiaDriver) -> Iterator[tuple[str, str]]:
    cores = "1 usable core" if host.cores == 1 else f"{host.cores} usable cores"
    yield "CPU", f"{host.cpu or 'of unknown make'}, {cores}"
    yield "instructions", " ".join(host.isa) or "nothing special known"
    yield "memory", f"{_gb(host.memory_bytes)}, available now {_gb(host.available_bytes)}"
    yield "huge pages", _HUGE_PAGES_MEAN.get(host.huge_pages or "", host.huge_pages or "unknown")
    yield "NUMA nodes", str(len(host.numa_nodes) or "unknown")
    yield "GPUs", gpus_text(driver)


def _use_texts(used: dict[str, Any], host: Host, accelerator: str) -> Iterator[tuple[str, str]]:
    name = used["cpu_kernel"]
    kernel = kernel_description(name, host.isa) if name else "no kernel: PyTorch missing"
    yield "CPU experts", kernel
    yield "accelerator", accelerator
    memory = f"up to {_gb(used['expert_memory_bytes'])}"
    yield "experts' memory", f"{memory}, shared with the other weights and the KV cache"
    yield "huge pages", "yes" if used["huge_pages"] else "no"
    yield "this machine", used["machine_description"] or "no description of it that can be used"
    packages = used["packages"].items()
    yield "packages", ", ".join(f"{name} {found}" for name, found in packages if found) or "none"


def _section(title: str, rows: Iterable[tuple[str, str]]) -> None:
    click.echo(title)
    for name, value in rows:
        click.echo(f"  {name:<17}{value}")


def _gb(size: int | None) -> str:
    """10^9 bytes, as in machine descriptions."""
    return "an unknown amount" if size is None else f"{size / 1e9:.1f} GB"


def gpus_text(driver: NvidiaDriver) -> str:
    if not driver.gpus:
        return f"none found: {driver.problem}"
    listed = ", ".join(_gpu_text(gpu) for gpu in driver.gpus)
    return f"{listed}; driver for CUDA {driver.version or 'of unknown version'}"


def accelerator_text(driver: NvidiaDriver, problem: str | None) -> str:
    if problem is not None:
        return f"none ({problem}); an emulated one with --accelerator emulated"
    return f"{driver.gpus[0].name}, used unless --accelerator none is given"


def _gpu_text(gpu: NvidiaGpu) -> str:
    able = "with" if gpu.stream_memory_operations else "without"
    return f"{gpu.name}, {gpu.memory_bytes / 1e9:.1f} GB, {able} stream memory operations"


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
    machine_problem: str | None  # why it cannot be used although it exists
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
    """The folder in which `policies/compiled.py` keeps machine code; asking it would load the
    compiler."""
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
