"""The accelerators a real machine can have, by the name settings give them. Needs no torch.

A new one is a row here, a way to run layers (`machines/layerwise/`) that states the same
capabilities, and a line where `engine/make_machine.py` builds it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from moesaic.core.capabilities import Capabilities
from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.core.offloading import CPU, GPU
from moesaic.hardware import machine_reader as machine_files
from moesaic.hardware.nvidia import compiler_problem, cuda_problem
from moesaic.hardware.planned_host import PlannedHost
from moesaic.kernels.instruction_sets import KERNELS

NONE = Capabilities(
    devices=(CPU,),
    moves=False,
    prefetch=False,
    true_gates=False,
    dense_follows=True,  # everything is on the CPU, so it is where the experts are
    kernels=KERNELS,
)
EMULATED = Capabilities(
    devices=(GPU, CPU),
    moves=True,
    prefetch=True,
    true_gates=True,
    dense_follows=False,  # the dense part of every layer belongs to the accelerator
    kernels=KERNELS,
    staging=2,  # double-buffered: one computes while the next arrives
)
CUDA = Capabilities(
    devices=(GPU, CPU),
    moves=True,
    prefetch=True,
    true_gates=True,
    dense_follows=False,
    kernels=KERNELS,
    staging=64,  # a layer's that are used once, and some of the next one's
    step_tokens=2048,
    own_memory=True,
)


@dataclass(frozen=True, slots=True)
class Accelerator:
    summary: str
    described_as: str  # the machine that `moesaic profile` describes with it
    capabilities: Capabilities
    problem: Callable[[], str | None] = lambda: None  # why it cannot be used here


ACCELERATORS: dict[str, Accelerator] = {
    "none": Accelerator("the CPU computes everything", machine_files.THIS, NONE),
    "emulated": Accelerator(
        "a second arena in main memory, a worker thread, throttled copies",
        machine_files.EMULATED,
        EMULATED,
    ),
    "cuda": Accelerator(
        "an NVIDIA GPU: its memory, its kernels, copies over PCIe",
        machine_files.CUDA,
        CUDA,
        cuda_problem,
    ),
}
LARGEST_BATCH = 256  # of sequences that a GPU decodes as one graph
SMALLEST_PROMPT, LARGEST_PROMPT = 16, 2048  # tokens that it reads as one graph
AUTO = "auto"  # an accelerator's name in settings: a GPU where there is one that can be used
VARIABLE = "MOESAIC_ACCELERATOR"  # what AUTO means, where this is set


class Automatic(str):
    """The accelerator that `AUTO` became. It equals the plain name; being of this type tells that
    it was not named by the user, so that the CPU may be used where the GPU cannot.

    `reason` says why it is no GPU; None: it is one."""

    reason: str | None

    def __new__(cls, name: str, reason: str | None = None) -> Automatic:
        chosen = super().__new__(cls, name)
        chosen.reason = reason
        return chosen


def choose(name: str, host: PlannedHost | None = None) -> str:
    """The accelerator that settings mean by a name: `AUTO` is a GPU where one can be used, unless
    the environment variable names another; on a machine that is only planned for, one that its
    description has."""
    if name != AUTO:
        return name
    if host is not None:
        return Automatic("cuda") if host.gpu else Automatic("none", "its description has none")
    named = os.environ.get(VARIABLE) or AUTO
    if named not in (*ACCELERATORS, AUTO):
        raise UnknownName(VARIABLE, named, (*ACCELERATORS, AUTO))
    if named != AUTO:
        return named
    problem = cuda_problem() or compiler_problem()
    return Automatic("cuda") if problem is None else Automatic("none", problem)


def chosen_gpu(name: str) -> bool:
    """Whether `AUTO` found a GPU, so that the CPU may be used instead."""
    return isinstance(name, Automatic) and ACCELERATORS[name].capabilities.own_memory


def check_usable(name: str) -> None:
    """Refuse an accelerator that this machine has not got."""
    problem = ACCELERATORS[name].problem()
    if problem is not None:
        raise ImpossibleSetting(
            f"accelerator {name!r} cannot be used here: {problem}. Without a GPU, use "
            "--accelerator none or emulated, or study one with `moesaic simulate`"
        )


def has_slots(name: str) -> bool:
    """Whether a machine with the accelerator of this name can hold experts in it."""
    return ACCELERATORS[name].capabilities.moves
