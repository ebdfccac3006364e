"""A CUDA machine's step that is given up in the middle: is the next one right, and residency true?
And is its capacity respected?"""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from cuda_runs import DEVICES, late
from executors import layers_of

from interrupting import Interrupt
from moesaic.engine.runner import Runner
from moesaic.machines.real.device_slots import DeviceSlots
from moesaic.machines.real.forward_pass import ForwardPass, Piece
from random_plans import RandomBrain
from real_runs import PROMPT, load, loaded, running, say, settings, truth

TOLERANCE = 1e-4
HOW = settings("best-split", "two-speed", "impact", accelerator="cuda")


def assert_residency_is_true(runner: Runner) -> None:
    """What is said to be there is there, and no slot is lost."""
    machine = layers_of(runner)
    machine.streams.synchronize()
    machine.ledger.cancel_background()
    residency = machine.residency
    for layer, expert in zip(*residency.resident.nonzero(), strict=True):
        there = machine.slots.block(int(layer), int(expert))
        assert torch.equal(there.cpu(), machine.store.block(int(layer), int(expert)))
    assert residency.occupied == residency.held.sum() == residency.resident.sum()
    assert len(machine.slots._free) == residency.slots - residency.occupied


def decoded(runner: Runner, name: str, step: int) -> None:
    (logits,) = runner.step(ForwardPass([Piece(0, truth(name).text[step : step + 1])]))
    assert (logits - truth(name).logits[len(PROMPT) + step]).abs().max() < TOLERANCE


@pytest.mark.parametrize("lately", [False, True], ids=["at once", "late"])
def test_an_interruption_before_any_line_leaves_nothing_behind(
    lately: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "qwen2-moe"
    model = loaded(name)
    slots = model.slots(0.3)
    if lately:
        late(monkeypatch)
    with running(model, HOW, slots, brain=RandomBrain(model.spec, slots)) as runner:
        runner.step(ForwardPass([Piece(0, PROMPT)]))
        with Interrupt() as usual:
            decoded(runner, name, 0)
        assert usual.lines > 100, "the machine is somewhere else"
        interrupted = 0
        for at in range(1, usual.lines + 20, 11):
            length = runner.cache.length(0)
            try:
                with Interrupt(at):
                    runner.step(ForwardPass([Piece(0, truth(name).text[1:2])]))
            except KeyboardInterrupt:
                interrupted += 1
            runner.cache.truncate(0, length)
            decoded(runner, name, 1)
            runner.cache.truncate(0, length)
            if at % 7 == 0:
                assert_residency_is_true(runner)
        assert interrupted > usual.lines / 22


@pytest.mark.parametrize("device", DEVICES)
def test_a_failing_kernel_fails_its_step_and_no_other(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "olmoe"
    model = load(name)
    slots, compute, calls = model.slots(0.3), model.store.kernel.compute, [0]

    def failing(*args: Any) -> None:
        calls[0] += 1
        if calls[0] == at:
            raise RuntimeError("this time it fails")
        compute(*args)

    with running(model, HOW, slots, brain=RandomBrain(model.spec, slots), device=device) as runner:
        runner.step(ForwardPass([Piece(0, PROMPT)]))
        for at in range(1, 9):
            calls[0] = 0
            with monkeypatch.context() as patched:
                patched.setattr(model.store.kernel, "compute", failing)
                with pytest.raises(RuntimeError, match="this time it fails"):
                    runner.step(ForwardPass([Piece(0, truth(name).text[at - 1 : at])]))
            decoded(runner, name, at - 1)
        assert_residency_is_true(runner)


@pytest.mark.parametrize("device", DEVICES)
def test_capacity_is_respected_and_memory_is_what_was_said(device: str) -> None:
    model = loaded("olmoe")
    slots = model.slots(0.2)
    with running(model, HOW, slots, brain=RandomBrain(model.spec, slots), device=device) as runner:
        machine = layers_of(runner)
        size = machine.store.kernel.block_bytes
        staging = machine.capabilities.staging_slots(machine.store.experts, size)
        assert len(machine.slots.slab) == slots + staging
        for _ in range(3):
            say(runner, steps=10)
            runner.free_slot(0)
            assert machine.residency.occupied <= slots
        assert_residency_is_true(runner)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_experts_are_placed_after_what_their_memory_was_used_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Slots are cleared late: what is placed in them must come later still."""
    made = DeviceSlots.__init__

    def late_clearing(slots: DeviceSlots, *args: Any) -> None:
        torch.cuda._sleep(200_000_000)
        made(slots, *args)

    monkeypatch.setattr(DeviceSlots, "__init__", late_clearing)
    model = loaded("olmoe")
    with running(model, HOW, model.slots(0.3), device="cuda") as runner:
        assert_residency_is_true(runner)
        assert runner.machine.residency.occupied > 0


def test_closing_stops_the_thread_also_in_the_middle_of_a_step() -> None:
    def ours() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("moesaic-")}

    before, model = ours(), loaded("olmoe")
    for at in (None, 40, 150, 260):
        slots = model.slots(0.3)
        with running(model, HOW, slots, brain=RandomBrain(model.spec, slots)) as runner:
            assert len(ours() - before) == 1, "the CPU's"
            if at is not None:
                with pytest.raises(KeyboardInterrupt), Interrupt(at):
                    runner.step(ForwardPass([Piece(0, PROMPT)]))
        assert ours() <= before
