"""Asks the system to keep a range of memory on one node."""

from __future__ import annotations

import ctypes
import mmap
import platform

_PREFERRED = 1
_MBIND = {"x86_64": 237, "aarch64": 235}


def prefer_node(address: int, size: int, node: int) -> bool:
    """Prefer a node for the whole pages in an untouched range; return whether the system agreed."""
    start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (address + size - start) // mmap.PAGESIZE * mmap.PAGESIZE
    number = _MBIND.get(platform.machine())
    if length <= 0 or number is None or platform.system() != "Linux":
        return False
    words = node // 64 + 1
    mask = (ctypes.c_ulong * words)()
    mask[node // 64] = 1 << node % 64
    system = ctypes.CDLL(None, use_errno=True)
    arguments = (
        ctypes.c_void_p(start),
        ctypes.c_ulong(length),
        _PREFERRED,
        mask,
        64 * words + 1,
        0,
    )
    return bool(system.syscall(number, *arguments) == 0)
