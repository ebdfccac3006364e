"""Launches that wait for their step: how they begin, and what becomes of unwanted ones."""

from __future__ import annotations

from time import monotonic, sleep

import numpy as np
import pytest
import torch

pytest.importorskip("moesaic.machines.captured._conductor")

from pretended_gpu import LAYERS, TOP_K, Scene

from moesaic.machines.captured.stamps import Stamps
from moesaic.policies.policy_set import PolicySet

CHOSEN = np.full((LAYERS, 1, TOP_K), [[5, 6]], dtype=np.int64)


def waiting_scene(ahead_ns: int, watchdog_ns: int = 5_000_000_000) -> tuple[Scene, torch.Tensor]:
    """After a step, with a launch that waits for the next one, of one token."""
    scene = Scene(PolicySet.of(), slots=4, watchdog_ns=watchdog_ns, ahead_ns=ahead_ns)
    active = torch.ones(1).long()
    scene.step(0, CHOSEN)
    assert int(scene.mailbox["start"][0]) == 1, "the GPU has been told to begin"
    scene.mailbox["start"][0] = 0  # which its first kernel does
    scene.conductor.expect(active)
    return scene, active


def passed(scene: Scene, active: torch.Tensor) -> bool:
    """The launch has begun, and finds neither tokens nor experts nor anything to wait for."""
    flags = [int(scene.mailbox[name][0]) for name in ("start", "planned", "summed")]
    begun = flags[0] == 1
    if begun:
        assert int(active[0]) == 0
        assert all(flag > LAYERS for flag in flags[1:])
        assert int(scene.mailbox["table"][0]) == 0
    return begun


def test_a_claimed_launch_waits_for_its_step() -> None:
    scene, active = waiting_scene(ahead_ns=20_000_000)
    assert scene.conductor.claim()
    sleep(0.06)
    assert not passed(scene, active)
    scene.step(1, CHOSEN)
    assert int(scene.mailbox["start"][0]) == 1
    assert int(active[0]) == 1
    assert not scene.conductor.let_through(), "the step has taken it"


def test_a_claimed_launch_does_not_wait_for_ever() -> None:
    """Its claimer may be waiting for the whole GPU. Its step is refused, the next is not."""
    scene, active = waiting_scene(ahead_ns=1_000_000_000, watchdog_ns=50_000_000)
    assert scene.conductor.claim()
    deadline = monotonic() + 10
    while not passed(scene, active):
        assert monotonic() < deadline
        sleep(0.001)
    with pytest.raises(RuntimeError, match="launched ahead was not ready after 50 ms"):
        scene.conductor.begin(1, 1)
    scene.step(1, CHOSEN)
    assert len(scene.on_gpu) == 2 * LAYERS


def test_a_launch_whose_step_does_not_come_goes_through() -> None:
    scene, active = waiting_scene(ahead_ns=1_000_000)
    deadline = monotonic() + 10
    while not passed(scene, active):
        assert monotonic() < deadline
        sleep(0.001)
    assert not scene.conductor.claim()
    assert not scene.conductor.let_through()
    scene.step(1, CHOSEN)
    assert len(scene.on_gpu) == 2 * LAYERS


@pytest.mark.parametrize("claimed", [False, True])
def test_a_launch_can_be_let_through(claimed: bool) -> None:
    scene, active = waiting_scene(ahead_ns=60_000_000_000)
    if claimed:
        assert scene.conductor.claim()
    assert scene.conductor.let_through()
    assert passed(scene, active)
    assert not scene.conductor.let_through()
    scene.step(1, CHOSEN)


def test_a_stopped_conductor_leaves_no_launch_behind() -> None:
    scene, active = waiting_scene(ahead_ns=60_000_000_000)
    mailbox = scene.mailbox
    del scene.conductor
    assert int(mailbox["start"][0]) == 1
    assert int(active[0]) == 0


def test_a_failed_step_leaves_no_launch_behind() -> None:
    """One launched beside it goes through as others do."""
    scene = Scene(
        PolicySet.of(schedule="static-experts", cache="pinned", prefetch="none"), slots=1,
        ahead_ns=1_000_000,
    )  # fmt: skip
    scene.cpu.fails = True
    with pytest.raises(RuntimeError, match="a worker has died"):
        scene.step(0, CHOSEN)
    scene.mailbox["start"][0] = 0
    active = torch.ones(1).long()
    scene.conductor.expect(active)
    deadline = monotonic() + 10
    while not passed(scene, active):
        assert monotonic() < deadline
        sleep(0.001)


def test_a_steps_times_outlive_a_launch_that_went_through() -> None:
    stamps = Stamps(1, device="cpu")
    stamps.host.copy_(torch.arange(8))
    stamps.keep()
    stamps.host.zero_()
    assert (stamps.read().begun, stamps.read().ended) == (0, 1)
    assert stamps.read().layers[0] == (2, 3, 4, 5, 6, 7)
