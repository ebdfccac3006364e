"""Streams and events of a GPU, and the choice between them and the host's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter_ns

import torch

from moesaic.kernels.gpu.driver import CudaFailed, copy_to_device
from moesaic.machines.real.streams import HostStreams, Mark, Streams

_NS_PER_MS = 1_000_000
_HELD_CYCLES = 2_000_000  # about a millisecond


class CudaMark:
    """An event, already recorded."""

    __slots__ = ("event",)

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.event = torch.cuda.Event(enable_timing=True)
        self.event.record(stream)

    def ended(self) -> bool:
        return bool(self.event.query())

    def wait(self) -> None:
        self.event.synchronize()


class CudaStreams:
    """Implements `Streams`. Computing is in the stream that is current in the calling thread.
    Small tensors travel through PyTorch's cache of pinned memory, which gives a piece out again
    only when the copy that used it has ended."""

    def __init__(self, device: str) -> None:
        torch.cuda.init()
        self.device = device
        self._copies = torch.cuda.Stream(device)
        self._stream = self._copies.cuda_stream
        self._aside = torch.cuda.Stream(device, priority=-1)
        self.rebase()

    def mark(self) -> Mark:
        return CudaMark(torch.cuda.current_stream())

    def after(self, mark: Mark) -> None:
        torch.cuda.current_stream().wait_event(_event(mark))

    def hold(self) -> None:
        torch.cuda._sleep(_HELD_CYCLES)

    def copy(
        self, target: torch.Tensor, source: torch.Tensor, after: Mark | None
    ) -> tuple[Mark, Mark]:
        if after is not None:
            self._copies.wait_event(_event(after))
        begun = CudaMark(self._copies)
        self._copy(target, source)
        return begun, CudaMark(self._copies)

    def copy_again(self, target: torch.Tensor, sources: Sequence[torch.Tensor], count: int) -> None:
        for number in range(count):
            self._copy(target, sources[number % len(sources)])

    def _copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy by the driver: PyTorch's own copy costs the host as much as the link."""
        copy_to_device(target.data_ptr(), source.data_ptr(), source.nbytes, self._stream)

    def upload(self, values: torch.Tensor) -> torch.Tensor:
        return values.pin_memory().to(self.device, non_blocking=True)

    def upload_pinned(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(self.device, non_blocking=True)

    def host_like(self, values: torch.Tensor) -> torch.Tensor:
        return torch.empty(values.shape, dtype=torch.float32, pin_memory=True)

    def download(self, values: torch.Tensor) -> tuple[torch.Tensor, Mark]:
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        host.copy_(values, non_blocking=True)
        return host, self.mark()

    @contextmanager
    def aside(self, mark: Mark) -> Iterator[None]:
        with torch.cuda.stream(self._aside):
            self.after(mark)
            yield

    def rebase(self) -> None:
        self._base = CudaMark(torch.cuda.current_stream())
        self._base_ns = perf_counter_ns()

    def time_ns(self, mark: Mark) -> int:
        passed_ms = float(self._base.event.elapsed_time(_event(mark)))
        return self._base_ns + round(passed_ms * _NS_PER_MS)

    def synchronize(self) -> None:
        try:
            torch.cuda.synchronize(self.device)
        except RuntimeError as error:
            raise CudaFailed(
                f"the GPU failed: {error}. Load the model again in a new process"
            ) from error


def _event(mark: Mark) -> torch.cuda.Event:
    assert isinstance(mark, CudaMark), "a mark of these streams"
    return mark.event


def make_streams(device: str) -> Streams:
    return HostStreams() if device == "cpu" else CudaStreams(device)
