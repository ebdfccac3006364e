"""Devices that a CUDA machine is tested on, and streams that make it wait: copies come late, as
late as they can, and code that does not wait for them reads something else."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from moesaic.machines.layerwise.gpu_layers import GpuLayers
from moesaic.machines.real.machine import Machine
from moesaic.machines.real.streams import HostMark, HostStreams, Mark
from moesaic.policies.belief import Belief

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=NEEDS_GPU)]
SYSTEMS = [
    ("hybrid", "mrs", "impact"),
    ("gpu-only", "lru", "next-layer"),
    ("static-experts", "pinned", "none"),
    ("best-split", "learned-speed:pool=global", "impact"),
]
# Costs that give GPU, CPU and link something to do, whatever the machine that tests measures.
EVERY_LANE = Belief.from_points(
    gpu={1: 20_000, 64: 40_000},
    cpu={1: 100_000, 64: 1_400_000},
    cpu_first_ns=20_000,
    transfer_ns=150_000,
    max_tokens=64,
)
_PATIENCE = 7  # times that a copy is asked about before it has ended by itself


class LateMark(HostMark):
    def __init__(self, number: int, wait: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.number, self.done, self._wait, self._asked = number, False, wait, 0

    def ended(self) -> bool:
        self._asked += 1
        if self._asked >= _PATIENCE:
            self.wait()
        return self.done

    def wait(self) -> None:
        self._wait()
        self.done = True


class LateStreams(HostStreams):
    """What is computed is computed at once; copies and downloads happen when they are waited for,
    in order. `read` must be called with every block that is computed from."""

    def __init__(self) -> None:
        self._marks = 0
        self._copies: deque[tuple[LateMark, torch.Tensor, torch.Tensor]] = deque()
        self._reads: dict[int, int] = {}  # address of a block -> marks there were
        self.longest = 0  # most copies under way at once

    def mark(self) -> Mark:
        self._marks += 1
        return LateMark(self._marks)

    def after(self, mark: Mark) -> None:
        mark.wait()

    def read(self, block: torch.Tensor) -> None:
        self._reads[block.data_ptr()] = self._marks

    def copy(
        self, target: torch.Tensor, source: torch.Tensor, after: Mark | None
    ) -> tuple[Mark, Mark]:
        last = self._reads.get(target.data_ptr())
        if last is not None:
            assert isinstance(after, LateMark), "the block may be being read"
            assert after.number > last, "it was read again after that"
        target.fill_(255)  # NaN in every floating-point format
        begun = self.mark()
        self._marks += 1
        arrived = LateMark(self._marks, lambda: self._until(arrived))
        self._copies.append((arrived, target, source))
        self.longest = max(self.longest, len(self._copies))
        return begun, arrived

    def download(self, values: torch.Tensor) -> tuple[torch.Tensor, Mark]:
        meant = values.clone()
        host = torch.full_like(meant, float("nan"))
        self._marks += 1

        def fill() -> None:
            host.copy_(meant)

        return host, LateMark(self._marks, fill)

    def synchronize(self) -> None:
        while self._copies:
            self._copies[-1][0].wait()

    def _until(self, mark: LateMark) -> None:
        while self._copies and self._copies[0][0].number <= mark.number:
            arrived, target, source = self._copies.popleft()
            target.copy_(source)
            arrived.done = True


def late(monkeypatch: pytest.MonkeyPatch) -> LateStreams:
    """Machines made from now on have late streams."""
    streams = LateStreams()
    monkeypatch.setattr("moesaic.engine.make_machine.make_streams", lambda device: streams)
    return streams


def note_reads(machine: Machine, streams: LateStreams, monkeypatch: Any) -> None:
    """Let the streams know which blocks experts are computed from."""
    layers = machine.layerwise
    assert isinstance(layers, GpuLayers)
    launch = layers.experts.launch

    def launched(experts: Sequence[int], blocks: Sequence[torch.Tensor]) -> None:
        for block in blocks:
            streams.read(block)
        launch(experts, blocks)

    monkeypatch.setattr(layers.experts, "launch", launched)
