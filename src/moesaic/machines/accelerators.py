"""The accelerators a real machine can have, by the name settings give them. Needs no torch.

A new one is a row here, a machine (`machines/real/`, `machines/cuda/`) that states the same
capabilities, and a line where `engine/assemble.py` builds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from moesaic.core.capabilities import Capabilities
from moesaic.core.errors import ImpossibleSetting
from moesaic.core.offloading import CPU, GPU
from moesaic.hardware import machine_reader as machine_files
from moesaic.hardware.nvidia import cuda_problem
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


def choose(name: str) -> str:
    """The accelerator that settings mean by a name: `AUTO` is a GPU where one can be used."""
    if name != AUTO:
        return name
    return "none" if cuda_problem() else "cuda"


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
