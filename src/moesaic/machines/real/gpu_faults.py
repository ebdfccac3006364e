"""What goes wrong on a GPU, in words: memory that another process has taken since it was planned,
and errors after which this process cannot use the GPU any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from moesaic.core.errors import ImpossibleSetting, MoesaicError
from moesaic.core.units import GB
from moesaic.kernels.gpu.driver import CudaFailed
from moesaic.machines.real.streams import Streams

OutOfMemory = torch.OutOfMemoryError


@contextmanager
def loading_explained() -> Iterator[None]:
    """What was planned was free a moment before."""
    try:
        yield
    except OutOfMemory:
        raise ImpossibleSetting(
            f"the GPU has less free memory than when the model was planned ({_free()}): another "
            "process must have taken it. End that process, or load with less: --gpu-memory or "
            "--cache-ratio"
        ) from None


class GpuGuard:
    """Around the passes of a GPU. A pass that runs out of memory ends its requests, and the next
    one can run. After an error of the GPU itself, which waiting for it then raises, too, none can:
    `broken` is the reason."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self.broken: str | None = None

    def check(self) -> None:
        if self.broken is not None:
            raise CudaFailed(self.broken)

    @contextmanager
    def explained(self) -> Iterator[None]:
        try:
            yield
        except OutOfMemory as error:
            raise CudaFailed(
                f"the GPU has no memory left for this step ({_free()}): another process must have "
                "taken it, since the step was planned to fit. Shorter steps need less: "
                "--max-step-tokens"
            ) from error
        except (RuntimeError, CudaFailed) as error:
            reason = _failure(self._streams.synchronize)
            if reason is None:
                raise
            self.broken = (
                f"the GPU failed in mid-step: {_first_line(error)}. This process cannot use it any "
                "more: load the model again in a new one"
            )
            raise CudaFailed(self.broken) from error


def _failure(synchronize: Callable[[], None]) -> str | None:
    """What the GPU says now; None: it goes on."""
    try:
        synchronize()
    except (RuntimeError, MoesaicError) as error:
        return str(error)
    return None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def _free() -> str:
    if not torch.cuda.is_available():
        return "how much is free is not known"
    try:
        free, total = torch.cuda.mem_get_info()
    except RuntimeError:
        return "how much is free is not known"
    return f"{free / GB:.1f} of {total / GB:.1f} GB are free"
