"""The accelerators a real machine can have, by the name settings give them. Needs no torch.

A new one is a row here, a machine in `machines/real/` that states the same capabilities, and a line
where `engine/assemble.py` builds it."""

from __future__ import annotations

from dataclasses import dataclass

from moesaic.core.capabilities import Capabilities
from moesaic.core.offloading import CPU, GPU
from moesaic.hardware import machine_reader as machine_files
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
)


@dataclass(frozen=True, slots=True)
class Accelerator:
    summary: str
    described_as: str  # the machine that `moesaic profile` describes with it
    capabilities: Capabilities


ACCELERATORS: dict[str, Accelerator] = {
    "none": Accelerator("the CPU computes everything", machine_files.THIS, NONE),
    "emulated": Accelerator(
        "a second arena in main memory, a worker thread, throttled copies",
        machine_files.EMULATED,
        EMULATED,
    ),
}


def has_slots(name: str) -> bool:
    """Whether a machine with the accelerator of this name can hold experts in it."""
    return ACCELERATORS[name].capabilities.moves
