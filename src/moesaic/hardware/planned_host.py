"""The machine that a plan is made for, where that is another than this one."""

from __future__ import annotations

from dataclasses import dataclass

from moesaic.hardware.machine_reader import ATTENTION
from moesaic.hardware.machine_spec import MachineSpec


@dataclass(frozen=True, slots=True)
class PlannedHost:
    """What a plan depends on besides the sizes of the memories. Its CPU is taken to have native
    kernels, whatever this machine has."""

    cores: int
    gpu: bool

    @classmethod
    def of(cls, spec: MachineSpec) -> PlannedHost:
        return cls(round(spec.cpu.cores), has_gpu(spec))


def has_gpu(spec: MachineSpec) -> bool:
    """Descriptions have the numbers of a GPU in any case: of a computer without one, the CPU's."""
    return not spec.gpu.name.endswith(ATTENTION)
