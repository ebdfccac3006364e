"""Does freed memory stay in the process, and the user's own setting as it is?"""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc")

# Blocks of a prompt's layer, taken and freed: page faults of the last round.
SCRIPT = """
import ctypes, resource, sys
from moesaic.kernels.freed_memory import keep_freed_memory
if sys.argv[1] == "keep":
    print(keep_freed_memory(), file=sys.stderr)
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
sizes = [size << 20 for size in (2, 4, 4, 9, 2, 2)]
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [(ctypes.c_void_p(libc.malloc(size)), size) for size in sizes]
    for block, size in blocks:
        libc.memset(block, 1, ctypes.c_size_t(size))
    for block, _ in blocks:
        libc.free(block)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str, **variables: str) -> tuple[int, str]:
    command = [sys.executable, "-c", SCRIPT, mode]
    environment = {"PATH": "/usr/bin:/bin", **variables}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return int(done.stdout), done.stderr.strip()


def test_the_next_layer_finds_its_pages() -> None:
    given_back, _ = faults("as it is")
    kept, said = faults("keep")
    assert said == "True"
    assert given_back > 1000
    assert kept < 100


def test_what_the_user_asked_for_stays() -> None:
    assert faults("keep", MALLOC_TRIM_THRESHOLD_="131072")[1] == "False"
