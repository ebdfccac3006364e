"""Host memory that the GPU addresses: pages are locked where they are, nothing is copied."""

from __future__ import annotations

from collections import Counter
from threading import Lock

import torch

from moesaic.kernels.gpu.driver import CudaFailed

_PORTABLE_AND_MAPPED = 3
_locked: Counter[tuple[int, int]] = Counter()  # ranges, with how many hold each
_lock = Lock()


class Pinned:
    """Locks a range of host memory until it is closed. Locking takes seconds: somebody who uses a
    store for several machines in turn holds it meanwhile, and theirs cost nothing."""

    def __init__(self, address: int, size: int) -> None:
        self.address, self.bytes = address, size
        with _lock:
            if not _locked[address, size]:
                self._register()
            _locked[address, size] += 1

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
        with _lock:
            _locked[self.address, self.bytes] -= 1
            if not _locked[self.address, self.bytes]:
                torch.cuda.cudart().cudaHostUnregister(self.address)


def pinned(address: int, size: int, device: str) -> Pinned | None:
    """Lock host memory for a GPU; for a device that is the CPU there is nothing to do."""
    return None if device == "cpu" else Pinned(address, size)
