"""How much memory this process takes, now and at most, as the kernel reports."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from moesaic.hardware.procfs import fields, kib, read

_STATUS = Path("/proc/self/status")
_PEAK = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # proc(5): the peak becomes what is taken now


class ProcessMemory(NamedTuple):
    """Bytes in main memory; None where the system does not say."""

    now: int | None
    peak: int | None  # since the process began, or since `reset_peak`


def process_memory() -> ProcessMemory:
    status = fields(read(_STATUS))
    return ProcessMemory(kib(status.get("VmRSS", "")), kib(status.get("VmHWM", "")))


def reset_peak() -> None:
    """The peak counts from now on, where the system allows it: otherwise earlier work stays in
    it, and it says too much, never too little."""
    with suppress(OSError):
        _PEAK.write_text(_RESET_PEAK)
