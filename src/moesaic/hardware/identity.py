"""Which GPU and CPU a description of this machine is of: names that change when something does on
which measured costs depend."""

from __future__ import annotations

from moesaic.hardware.host import Host
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.hardware.nvidia import NvidiaDriver


def gpu_identity(driver: NvidiaDriver) -> str:
    """The first GPU, with its driver."""
    if not driver.gpus:
        return "no GPU"
    return f"{driver.gpus[0].name} (driver for CUDA {driver.version or 'of unknown version'})"


def cpu_identity(host: Host, threads: int, kernel: str) -> str:
    """`kernel` is what computes experts there."""
    return f"{host.cpu or 'CPU'}, {threads} threads, {kernel}"


def changes_since(
    spec: MachineSpec, host: Host, driver: NvidiaDriver, threads: int, kernel: str
) -> list[str]:
    """What is no longer as the description says; empty where it is of this machine."""
    now = {spec.gpu.name: gpu_identity(driver), spec.cpu.name: cpu_identity(host, threads, kernel)}
    return [f"{before} is now {after}" for before, after in now.items() if before != after]
