"""Do pools finish and agree, wherever their workers run and whatever else uses the cores?"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from native_experts import WAYS, Layer, random_layer

from moesaic.kernels import _native
from moesaic.kernels.native_executor import NativeExecutor
from moesaic.model_info.expert_shape import ExpertShape

pytestmark = pytest.mark.skipif(not WAYS, reason="this CPU has no instructions for the kernels")
SHAPE = ExpertShape(64, 48)


def some_layer(tokens: int = 3) -> Layer:
    return random_layer(WAYS[0].kernel(SHAPE, "bf16"), tokens, experts=4, top_k=2)


def threads_alive() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_submit_returns_and_wait_finishes() -> None:
    layer = some_layer()
    expected = layer.computed(NativeExecutor(layer.kernel, 1))
    for workers in (0, 1, 3):
        runner = layer.kernel.runner(_native.Pool([-1] * workers, 0.0))
        assert runner.done(), "nothing was submitted yet"
        for help_too in (True, False):
            out = torch.full((3, 64), -1.0)
            runner.submit(layer.call(out))
            runner.wait(help_too)
            assert runner.done()
            assert torch.equal(out, expected)
            runner.wait(help_too)  # for nothing: returns at once


def test_workers_finish_on_their_own() -> None:
    layer = some_layer()
    runner, out = layer.kernel.runner(_native.Pool([-1], 0.0)), torch.empty(3, 64)
    runner.submit(layer.call(out))
    end = time.monotonic() + 20.0
    while not runner.done() and time.monotonic() < end:
        time.sleep(0.001)
    assert runner.done()
    assert torch.equal(out, layer.computed(NativeExecutor(layer.kernel, 1)))


def test_the_next_layer_waits_for_the_last() -> None:
    layer = some_layer(60)
    runner = layer.kernel.runner(_native.Pool([-1], 0.0))
    outs = [torch.empty(60, 64) for _ in range(40)]
    for out in outs:
        runner.submit(layer.call(out))
    runner.wait(True)
    assert all(torch.equal(out, outs[0]) for out in outs)


def test_a_pool_wider_than_the_machine() -> None:
    layer = some_layer(20)
    expected = layer.computed(NativeExecutor(layer.kernel, 1))
    executor = NativeExecutor(layer.kernel, 4 * (os.cpu_count() or 1) + 1)
    assert executor.pool.workers == 4 * (os.cpu_count() or 1)
    assert all(torch.equal(layer.computed(executor), expected) for _ in range(50))


def test_a_core_that_is_not_there_is_not_insisted_on() -> None:
    layer = some_layer()
    pool = _native.Pool([100_000, -1, -7], 0.0)
    out = torch.empty(3, 64)
    runner = layer.kernel.runner(pool)
    runner.submit(layer.call(out))
    runner.wait(False)
    assert pool.pinned == []
    assert torch.equal(out, layer.computed(NativeExecutor(layer.kernel, 1)))


def test_pools_of_several_threads_in_parallel() -> None:
    """Each thread its own; and all threads one, each with its own runner."""
    layer = some_layer(5)
    expected = layer.computed(NativeExecutor(layer.kernel, 1))
    shared = _native.Pool([-1, -1], 10.0)

    def own(number: int) -> bool:
        executor = NativeExecutor(layer.kernel, number % 4 + 1)
        return all(torch.equal(layer.computed(executor), expected) for _ in range(30))

    def ours(number: int) -> bool:
        runner, same = layer.kernel.runner(shared), True
        for _ in range(30):
            out = torch.empty(5, 64)
            runner.submit(layer.call(out))
            runner.wait(number % 2 == 0)
            same = same and torch.equal(out, expected)
        return same

    for act in (own, ours):
        with ThreadPoolExecutor(20) as threads:
            assert all(threads.map(act, range(20)))


def test_threads_may_share_a_kernel() -> None:
    layer = some_layer(4)
    block, kernel = layer.blocks.tensors[0], layer.kernel

    def part(_: int) -> torch.Tensor:
        out = torch.zeros(4, 64)
        kernel.compute(block, layer.hidden, None, 1.0, out)
        return out

    alone = part(0)
    with ThreadPoolExecutor(4) as threads:
        assert all(torch.equal(got, alone) for got in threads.map(part, range(80)))


def test_a_busy_neighbour_delays_but_does_not_stop() -> None:
    """A pool as wide as the machine, and as many processes that never rest: a worker whose core is
    taken must not be waited for once others have done the work."""
    layer = some_layer(8)
    executor = NativeExecutor(layer.kernel, (os.cpu_count() or 1) + 1)
    expected = layer.computed(executor)
    spin = "import time\nend = time.time() + 1.5\nwhile time.time() < end: pass"
    busy = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(os.cpu_count() or 1)]
    try:
        started, layers = time.monotonic(), 0
        while time.monotonic() < started + 1.0:
            assert torch.equal(layer.computed(executor), expected)
            layers += 1
    finally:
        for process in busy:
            process.wait()
    assert layers > 20


def test_python_goes_on_while_a_layer_is_computed() -> None:
    """One long call; a thread that could not have the interpreter's lock would count to one."""
    kernel = WAYS[0].kernel(ExpertShape(512, 512), "bf16")
    layer = random_layer(kernel, 1500, experts=4, top_k=4)
    executor, counted, stop = NativeExecutor(kernel, 1), [0], threading.Event()

    def count() -> None:
        while not stop.wait(0.001):
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    before = counted[0]
    layer.computed(executor)
    during = counted[0] - before
    stop.set()
    thread.join()
    assert during > 5


def test_pools_leave_no_threads_behind() -> None:
    gc.collect()
    before = threads_alive()
    layer = some_layer()
    executors = [NativeExecutor(layer.kernel, 4) for _ in range(3)]
    assert threads_alive() == before + 9
    for executor in executors:
        layer.computed(executor)
    del executor, executors
    gc.collect()
    end = time.monotonic() + 10.0
    while threads_alive() > before and time.monotonic() < end:
        time.sleep(0.001)  # the system takes a moment to forget a thread that has ended
    assert threads_alive() == before


def test_a_runner_that_is_dropped_finishes_first() -> None:
    layer = some_layer(40)
    expected = layer.computed(NativeExecutor(layer.kernel, 1))
    for _ in range(30):
        out = torch.empty(40, 64)
        layer.kernel.runner(_native.Pool([-1], 0.0)).submit(layer.call(out))
        assert torch.equal(out, expected), "the runner was dropped, so the layer is done"


def test_jobs_start_on_workers() -> None:
    latencies = _native.Pool([-1], 1000.0).start_latencies(20)
    assert len(latencies) == 20
    assert all(0 < each < 10e9 for each in latencies)
