"""Host memory that the GPU addresses: pages are locked where they are, nothing is copied."""

from __future__ import annotations

from collections.abc import Collection
from threading import Lock

import torch

from moesaic.kernels.gpu.driver import CudaFailed

_PORTABLE_AND_MAPPED = 3
_lock = Lock()


class Pinned:
    """Locks a range of host memory until it is closed. Locking takes seconds: a caller that
    uses a store for several machines in turn holds it meanwhile, and theirs cost nothing."""

    def __init__(self, address: int, size: int) -> None:
        self.address, self.bytes = address, size
        with _lock:
            if not self._shared():
                self._register()
            _holders.append(self)

    def _shared(self) -> bool:
        """Whether another owner holds the same range."""
        mine = (self.address, self.bytes)
        return any((each.address, each.bytes) == mine for each in _holders if each is not self)

    def _register(self) -> None:
        result = torch.cuda.cudart().cudaHostRegister(
            self.address, self.bytes, _PORTABLE_AND_MAPPED
        )
        if int(result):
            raise CudaFailed(
                f"{self.bytes / 1e9:.1f} GB of host memory cannot be locked for the GPU "
                f"(cudaHostRegister: {result}): raise the limit on locked memory (ulimit -l)"
            )

    def close(self) -> None:
        """Nothing where it is closed already."""
        with _lock:
            if self not in _holders:
                return
            _holders.remove(self)
            if not self._shared():
                torch.cuda.cudart().cudaHostUnregister(self.address)


_holders: list[Pinned] = []  # those that are not closed


def held() -> tuple[Pinned, ...]:
    """What is locked now, for tests that nothing stays so."""
    with _lock:
        return tuple(_holders)


def close_others(than: Collection[Pinned]) -> int:
    """Close what other owners have left behind; their number. Memory that is freed
    while it is locked makes a later lock of the same addresses fail."""
    left = [each for each in held() if each not in than]
    for each in left:
        each.close()
    return len(left)


def pinned(address: int, size: int, device: str) -> Pinned | None:
    """Lock host memory for a GPU; for a device that is the CPU there is nothing to do."""
    return None if device == "cpu" else Pinned(address, size)
