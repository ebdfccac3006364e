"""Order on a device: what is computed and copied runs in streams, and marks in them say what comes
after what. On the CPU, for tests, everything has happened when it was submitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter_ns
from typing import Protocol

import torch


class Mark(Protocol):
    """A point in a stream."""

    def ended(self) -> bool:
        """Whether the stream has passed it."""

    def wait(self) -> None:
        """The calling thread waits until it has."""


class Streams(Protocol):
    """Computing is submitted in the caller's order; copies of experts are in a stream of their own,
    one after the other."""

    @property
    def device(self) -> str: ...

    def mark(self) -> Mark:
        """After what was submitted for computing so far."""

    def after(self, mark: Mark) -> None:
        """What is submitted for computing from now on begins after the mark."""

    def hold(self) -> None:
        """Computing pauses for a while, so that what is submitted next runs without gaps."""

    def copy(
        self, target: torch.Tensor, source: torch.Tensor, after: Mark | None
    ) -> tuple[Mark, Mark]:
        """Copy an expert, not before the mark. Returns when that begins and when it ends."""

    def copy_again(self, target: torch.Tensor, sources: Sequence[torch.Tensor], count: int) -> None:
        """So many copies of experts one after the other, for measuring."""

    def upload(self, values: torch.Tensor) -> torch.Tensor:
        """A copy on the device of what is in host memory now, for what is computed next."""

    def host_like(self, values: torch.Tensor) -> torch.Tensor:
        """fp32 host memory of this shape, to be filled and given to `upload_pinned`."""

    def upload_pinned(self, values: torch.Tensor) -> torch.Tensor:
        """The same as `upload` of memory from `host_like`, as a whole."""

    def download(self, values: torch.Tensor) -> tuple[torch.Tensor, Mark]:
        """A copy in host memory of what was computed; complete when the mark has passed."""

    def aside(self, mark: Mark) -> AbstractContextManager[None]:
        """What is computed inside waits for the mark and for nothing else."""

    def rebase(self) -> None:
        """Set the clock of marks; nothing may be running."""

    def time_ns(self, mark: Mark) -> int:
        """When a mark was passed, on the clock of `perf_counter_ns`. It must have been."""

    def synchronize(self) -> None:
        """Wait until everything submitted has ended; raise what went wrong on the device."""


class HostMark:
    def __init__(self) -> None:
        self.time_ns = perf_counter_ns()

    def ended(self) -> bool:
        return True

    def wait(self) -> None:
        pass


class HostStreams:
    """Implements `Streams` without a GPU."""

    device = "cpu"

    def mark(self) -> Mark:
        return HostMark()

    def after(self, mark: Mark) -> None:
        pass

    def hold(self) -> None:
        pass

    def copy(
        self, target: torch.Tensor, source: torch.Tensor, after: Mark | None
    ) -> tuple[Mark, Mark]:
        begun = HostMark()
        target.copy_(source)
        return begun, HostMark()

    def copy_again(self, target: torch.Tensor, sources: Sequence[torch.Tensor], count: int) -> None:
        for number in range(min(count, len(sources))):  # nothing can run beside them
            target.copy_(sources[number])

    def upload(self, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    def host_like(self, values: torch.Tensor) -> torch.Tensor:
        return torch.empty(values.shape, dtype=torch.float32)

    def upload_pinned(self, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    def download(self, values: torch.Tensor) -> tuple[torch.Tensor, Mark]:
        return values.clone(), HostMark()

    @contextmanager
    def aside(self, mark: Mark) -> Iterator[None]:
        yield

    def rebase(self) -> None:
        pass

    def time_ns(self, mark: Mark) -> int:
        assert isinstance(mark, HostMark), "a mark of these streams"
        return mark.time_ns

    def synchronize(self) -> None:
        pass
