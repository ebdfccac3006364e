"""Host memory that the GPU addresses: pages are locked where they are, nothing is copied."""

from __future__ import annotations

import torch

from moesaic.kernels.gpu.driver import CudaFailed

_PORTABLE_AND_MAPPED = 3


class Pinned:
    """Locks a range of host memory until it is closed."""

    def __init__(self, address: int, size: int) -> None:
        self.address, self.bytes = address, size
        result = torch.cuda.cudart().cudaHostRegister(address, size, _PORTABLE_AND_MAPPED)
        if int(result):
            raise CudaFailed(
                f"{size / 1e9:.1f} GB of host memory cannot be locked for the GPU "
                f"(cudaHostRegister: {result}): raise the limit on locked memory (ulimit -l)"
            )

    def close(self) -> None:
        torch.cuda.cudart().cudaHostUnregister(self.address)


def pinned(address: int, size: int, device: str) -> Pinned | None:
    """Lock host memory for a GPU; for a device that is the CPU there is nothing to do."""
    return None if device == "cpu" else Pinned(address, size)
