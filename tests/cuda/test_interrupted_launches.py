"""Ctrl-C while the next step is launched ahead: nothing is forgotten that waits on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Thread
from time import monotonic

import numpy as np
import pytest
import torch

pytest.importorskip("moesaic.machines.captured._conductor")

from pretended_gpu import LAYERS, TOP_K, Scene

from moesaic.machines.captured.launch_ahead import LaunchAhead
from moesaic.policies.policy_set import PolicySet

CHOSEN = np.full((LAYERS, 1, TOP_K), [[5, 6]], dtype=np.int64)


class PretendedStream:
    """Launches in order. Each takes the word to begin, as its first kernel would; one that has none
    would wait for ever."""

    def __init__(self, scene: Scene) -> None:
        self._start = scene.mailbox["start"]
        self.launched = self.ended = 0
        self.interrupts: Callable[[], None] = lambda: None

    def replay(self) -> None:
        self.launched += 1
        self.interrupts()

    def synchronize(self) -> None:
        self.end(self.launched)

    def end(self, launches: int) -> None:
        while self.ended < launches:
            assert int(self._start[0]) == 1, "it waits for ever"
            self._start[0] = 0
            self.ended += 1


class PretendedEvent:
    stream: PretendedStream

    def record(self) -> None:
        self._launches = self.stream.launched

    def synchronize(self) -> None:
        self.stream.end(self._launches)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def scene() -> Scene:
    return Scene(PolicySet.of(), slots=4, ahead_ns=60_000_000_000, watchdog_ns=100_000_000)


@pytest.fixture
def stream(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> PretendedStream:
    found = PretendedStream(scene)
    monkeypatch.setattr(PretendedEvent, "stream", found, raising=False)
    monkeypatch.setattr(torch.cuda, "Event", PretendedEvent)
    return found


def under_way(
    scene: Scene, stream: PretendedStream
) -> tuple[LaunchAhead, PretendedEvent, torch.Tensor]:
    """A step has begun and is launched."""
    ahead = LaunchAhead(scene.conductor, stream)
    scene.conductor.begin(0, 1)
    return ahead, ahead.launch(stream), torch.ones(1).long()


def check_gone(scene: Scene, stream: PretendedStream) -> None:
    assert stream.ended == stream.launched == 2
    assert not scene.conductor.let_through()


def test_a_launch_that_was_interrupted_does_not_stay(scene: Scene, stream: PretendedStream) -> None:
    """It is on the GPU when Python notices the signal."""
    ahead, ended, active = under_way(scene, stream)
    stream.interrupts = interrupted
    with pytest.raises(KeyboardInterrupt):
        ahead.launch_next("kind", stream, active, ended)
    ahead.cancel()
    check_gone(scene, stream)


@pytest.mark.parametrize("calls", ["before", "after"])
def test_an_interrupt_beside_the_conductor_does_not_leave_a_launch(
    calls: str, scene: Scene, stream: PretendedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead, ended, active = under_way(scene, stream)
    ahead.launch_next("kind", stream, active, ended)
    with pytest.raises(RuntimeError, match="has not reached"):
        scene.conductor.finish()
    ended.synchronize()
    expect = scene.conductor.expect

    def expect_and_raise(at: int) -> None:
        interrupted(expect(at) if calls == "after" else None)

    with monkeypatch.context() as patch:
        patch.setattr(scene.conductor, "expect", expect_and_raise)
        with pytest.raises(KeyboardInterrupt):
            ahead.expect_it()
    ahead.cancel()
    check_gone(scene, stream)


def test_a_step_that_the_gpu_has_not_begun_goes_first(
    scene: Scene, stream: PretendedStream
) -> None:
    """It fails since the GPU was busy elsewhere; both launches get their word."""
    ahead, ended, active = under_way(scene, stream)
    ahead.launch_next("kind", stream, active, ended)
    with pytest.raises(RuntimeError, match="has not reached MoE layer 0"):
        scene.conductor.finish()
    assert not stream.ended
    ahead.cancel()
    check_gone(scene, stream)


def test_a_closed_conductor_has_no_thread(scene: Scene, stream: PretendedStream) -> None:
    """Launches refer to it still, and so may the frames of an error."""
    threads = len(list(Path("/proc/self/task").iterdir()))
    ahead = LaunchAhead(scene.conductor, stream)
    scene.conductor.close()
    assert len(list(Path("/proc/self/task").iterdir())) < threads
    assert ahead


def test_nothing_is_let_through_beside_a_step(scene: Scene) -> None:
    """Its flags and its table are the conductor's. This one ends with an error, after a while."""
    active, began = torch.ones(1).long(), monotonic()
    scene.conductor.begin(0, 1)
    scene.conductor.expect(active)
    caller = Thread(target=scene.conductor.let_through)
    caller.start()
    caller.join(0.03)
    if monotonic() - began < 0.09:
        assert int(scene.mailbox["planned"][0]) == 0
        assert int(active[0]) == 1
    caller.join(10)
    assert int(active[0]) == 0
    assert int(scene.mailbox["planned"][0]) > LAYERS
