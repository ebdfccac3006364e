"""Lets the C library keep what is freed. The tensors between a prompt's products are some
megabytes each: glibc gives such memory back to the system when it is freed, and takes it again for
the next layer, page by page: with 512 tokens of Qwen3-30B-A3B's shape thousands of page faults
(tests/kernels/test_freed_memory.py counts them for such blocks)."""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
KEPT_BYTES = 512 << 20  # free memory at the end of the heap, at most
LARGEST_BYTES = 32 << 20  # of a tensor that is taken from the heap; glibc allows no more
_ASKED = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@cache
def keep_freed_memory() -> bool:
    """Keep freed memory in the whole process, once; return whether it does. Another allocator, and
    what the user has asked of glibc, stay as they are."""
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in _ASKED):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_MMAP_THRESHOLD, LARGEST_BYTES), (_TRIM_THRESHOLD, KEPT_BYTES))
    return all(bool(mallopt(*each)) for each in settings)
