"""Reads the kernel's text files: /proc and /sys, where a missing file means "not known"."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


def read(path: Path) -> str:
    """The file's text; nothing where it is missing or may not be read."""
    try:
        return path.read_bytes().decode(errors="replace")
    except (OSError, ValueError):
        return ""


def fields(text: str) -> dict[str, str]:
    """`key : value` lines; of a key that comes again (one block per processor), the first."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            found.setdefault(key.strip(), value.strip())
    return found


def whole(text: str) -> int | None:
    """A count as the kernel writes it; None for "max", -1 or nothing."""
    word = text.strip()
    return int(word) if word.isascii() and word.isdecimal() else None


def kib(value: str) -> int | None:
    """Bytes of a size like "24682740 kB" (the kernel means KiB)."""
    count, _, unit = value.partition(" ")
    number = whole(count)
    return number * 1024 if number is not None and unit.strip() == "kB" else None


# How much memory this process takes, now and at most, as the kernel reports.

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
