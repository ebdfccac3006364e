"""Is host memory locked once, unlocked once, and never left locked by a test that fails?"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from moesaic.kernels.gpu.driver import CudaFailed
from moesaic.machines.real.pinned import Pinned, close_others, held


class Runtime:
    """Locks ranges as CUDA does: none twice, and only what is locked is unlocked."""

    def __init__(self) -> None:
        self.ranges: set[int] = set()

    def lock(self, address: int, size: int, flags: int) -> int:
        if address in self.ranges:
            return 712  # cudaErrorHostMemoryAlreadyRegistered
        self.ranges.add(address)
        return 0

    def unlock(self, address: int) -> int:
        self.ranges.remove(address)
        return 0


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    """Of the module: it outlives what is done after every test (`tests/conftest.py`)."""
    made = Runtime()
    calls = SimpleNamespace(cudaHostRegister=made.lock, cudaHostUnregister=made.unlock)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.cuda, "cudart", lambda: calls)
        yield made


def test_a_range_is_unlocked_by_its_last_holder(runtime: Runtime) -> None:
    one, two, other = Pinned(4096, 100), Pinned(4096, 100), Pinned(8192, 100)
    one.close()
    one.close()
    assert runtime.ranges == {4096, 8192}, "closed twice is closed once"
    two.close()
    assert runtime.ranges == {8192}
    other.close()
    assert runtime.ranges == set()


def test_what_cannot_be_locked_is_not_held(runtime: Runtime) -> None:
    runtime.ranges.add(4096)
    before = held()
    with pytest.raises(CudaFailed, match="ulimit"):
        Pinned(4096, 100)
    assert held() == before
    runtime.ranges.clear()


def test_what_a_failed_test_left_is_closed(runtime: Runtime) -> None:
    kept = Pinned(4096, 100)
    before = held()
    left = Pinned(8192, 100)
    shared = Pinned(4096, 100)
    assert close_others(before) == 2
    assert runtime.ranges == {4096}, "a fixture holds it"
    again = Pinned(8192, 100)
    left.close()
    shared.close()
    assert runtime.ranges == {4096, 8192}, "too late to take it from another owner"
    again.close()
    kept.close()
    assert runtime.ranges == set()


def test_one_test_leaves_it(runtime: Runtime) -> None:
    Pinned(4096, 100)
    assert runtime.ranges == {4096}


def test_the_next_one_finds_nothing(runtime: Runtime) -> None:
    """After the one above, which is what a test does that fails before it closes its machine."""
    assert runtime.ranges == set()
