"""How large this computer's last-level cache is, and how much to read so that it does not count."""

from __future__ import annotations

from pathlib import Path

from moesaic.hardware.host import ROOT, memory
from moesaic.hardware.procfs import read, whole

TIMES = 4  # so many caches are read: at most a quarter can still be there from the last time
LEAST_BYTES = 256 << 20
_UNKNOWN_CACHE = 512 << 20  # larger than most; where the system does not say
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def last_level_cache_bytes(root: Path = ROOT) -> int | None:
    """The size over all sockets and core complexes; None where the kernel does not report it."""
    found: dict[str, int] = {}  # by the cores that share it
    level = 0
    for index in sorted((root / "sys/devices/system/cpu").glob("cpu[0-9]*/cache/index[0-9]*")):
        number, size = whole(read(index / "level")), _size(read(index / "size"))
        if number is None or size is None or read(index / "type").strip() == "Instruction":
            continue
        if number > level:
            found, level = {}, number
        if number == level:
            found[read(index / "shared_cpu_list").strip() or str(index)] = size
    return sum(found.values()) or None


def stream_bytes(root: Path = ROOT) -> int:
    """How much to read for the rate of memory rather than of a cache: several times the last-level
    cache, but no more than an eighth of the memory that is free."""
    wanted = max(TIMES * (last_level_cache_bytes(root) or _UNKNOWN_CACHE), LEAST_BYTES)
    available = memory(root)[1]
    return wanted if available is None else max(min(wanted, available // 8), 1 << 20)


def _size(text: str) -> int | None:
    """Bytes of a size like "32768K"."""
    word = text.strip()
    count = whole(word[:-1])
    return None if count is None or word[-1] not in _UNITS else count * _UNITS[word[-1]]
