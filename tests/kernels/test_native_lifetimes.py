"""Does memory that native code was given the address of stay until it has been used?"""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import Any

import pytest
import torch
from native_experts import WAYS, bytes_at, packed, random_expert

from moesaic.core.numa import Node
from moesaic.kernels import native_executor
from moesaic.kernels.base import Blocks
from moesaic.kernels.native_executor import NativeExecutor, NumaExecutor, _threads_per_node
from moesaic.model_info.expert_shape import ExpertShape

pytestmark = pytest.mark.skipif(not WAYS, reason="this CPU has no instructions for the kernels")
SHAPE = ExpertShape(64, 48)


class Watching:
    """A runner that only calls a callback."""

    def __init__(self, look: Any) -> None:
        self._look = look

    def run(self, *_: Any) -> int:
        self._look()
        return 0


def test_the_table_of_a_single_expert_outlives_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    tables: list[weakref.ref[Blocks]] = []

    class Watched(Blocks):
        def __init__(self, blocks: list[torch.Tensor]) -> None:
            super().__init__(blocks)
            tables.append(weakref.ref(self))

    monkeypatch.setattr(native_executor, "Blocks", Watched)
    kernel = WAYS[0].kernel(SHAPE, "bf16")
    executor, there = NativeExecutor(kernel, 1), []
    look = Watching(lambda: there.append(tables[-1]() is not None))
    monkeypatch.setattr(executor, "runner", look)
    block = bytes_at(kernel.block_bytes)
    executor.expert(block, torch.ones(2, 64), None, 1.0, torch.zeros(2, 64))
    executor.expert(block, torch.ones(2, 64), torch.tensor([1]), 1.0, torch.zeros(2, 64))
    assert there == [True, True]


def test_an_interrupted_caller_leaves_workers_what_they_write_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two nodes: while the first computes, the second does so on its own."""
    kernel = WAYS[0].kernel(SHAPE, "bf16")
    executor = NumaExecutor(kernel, 2, (Node(0, (0,)), Node(0, (0,))))
    blocks = Blocks([packed(kernel, random_expert(SHAPE, seed)) for seed in range(2)])
    results: list[weakref.ref[torch.Tensor]] = []
    first, second = executor.executors
    begin = second.submit

    def submit(*given: Any) -> None:
        results.append(weakref.ref(given[5]))  # what the experts are added to
        begin(*given)

    def interrupted(*_: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(second, "submit", submit)
    monkeypatch.setattr(first, "layer", interrupted)
    ids, weights = torch.tensor([[0, 1]]), torch.ones(1, 2)
    with suppress(KeyboardInterrupt):
        executor.layer(blocks, [0, 1], torch.ones(1, 64), ids, weights, torch.empty(1, 64))
    assert results[0]() is not None, "workers may be writing there"
    second.wait()
    assert results[0]() is None


@pytest.mark.parametrize(
    ("threads", "cores", "shares"),
    [(2, [8, 8], [1, 1]), (3, [8, 8], [2, 1]), (16, [8, 8], [8, 8]), (7, [8, 2], [5, 2])],
)
def test_nodes_share_the_threads_asked_for(
    threads: int, cores: list[int], shares: list[int]
) -> None:
    assert sum(shares) == threads
    assert _threads_per_node(threads, cores) == shares


def test_fewer_threads_than_nodes_are_not_made_more() -> None:
    nodes = (Node(0, (0,)), Node(1, (1,)))
    executor = WAYS[0].kernel(SHAPE, "bf16").executor(1, nodes)
    assert isinstance(executor, NativeExecutor)
    assert executor.pool.workers == 0
