"""A step that is given up in the middle: is the next one right, and is residency true?"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
import torch

from interrupting import Interrupt
from moesaic.engine.runner import Runner
from moesaic.machines.layerwise.lane_layers import LaneLayers
from moesaic.machines.real.copy_engine import Copy
from moesaic.machines.real.forward_pass import ForwardPass, Piece
from random_plans import RandomBrain
from real_runs import PROMPT, load, loaded, running, settings, truth

FAMILIES = ("qwen2-moe", "olmoe")  # with shared experts, and without
TOLERANCE = 1e-4
HOW = settings("best-split", "two-speed", "impact", link_latency_us=200.0)


def assert_residency_is_true(runner: Runner) -> None:
    """Experts that are said to be there have the right weights there, and no slot is lost."""
    machine = runner.machine.layerwise
    assert isinstance(machine, LaneLayers)
    machine.ledger.cancel_background()
    machine.accelerator.link.halt()
    machine.ledger.poll()
    residency = machine.residency
    for layer, expert in zip(*residency.resident.nonzero(), strict=True):
        there = machine.accelerator.block(int(layer), int(expert))
        assert torch.equal(there, machine.store.block(int(layer), int(expert)))
    assert residency.occupied == residency.held.sum() == residency.resident.sum()
    assert len(machine.accelerator._free) == residency.slots - residency.occupied


def decoded(runner: Runner, name: str, step: int) -> None:
    """A decode step of the stock model's text, which must be right."""
    (logits,) = runner.step(ForwardPass([Piece(0, truth(name).text[step : step + 1])]))
    assert (logits - truth(name).logits[len(PROMPT) + step]).abs().max() < TOLERANCE


def all_decoded(runner: Runner, name: str, steps: range) -> None:
    for step in steps:
        decoded(runner, name, step)


def prefilled(runner: Runner, name: str) -> None:
    logits = runner.step(ForwardPass([Piece(0, PROMPT, all_logits=True)]))
    assert (logits - truth(name).logits[: len(PROMPT)]).abs().max() < TOLERANCE


@pytest.mark.parametrize(("name", "stride"), [("qwen2-moe", 3), ("olmoe", 11)])
def test_an_interruption_before_any_line_leaves_nothing_behind(name: str, stride: int) -> None:
    """Layers run the same lines, and their number shifts: with a stride all get their turn."""
    model = loaded(name)
    slots = model.slots(0.3)
    brain = RandomBrain(model.spec, slots)
    with running(model, HOW, slots, brain=brain) as runner:
        prefilled(runner, name)
        with Interrupt() as usual:
            decoded(runner, name, 0)
        assert usual.lines > 100, "the machine is somewhere else"
        interrupted = 0
        for at in range(1, usual.lines + 20, stride):
            length = runner.cache.length(0)
            try:
                with Interrupt(at):
                    runner.step(ForwardPass([Piece(0, truth(name).text[1:2])]))
            except KeyboardInterrupt:
                interrupted += 1
                assert runner.cache.length(0) == length, at
            runner.cache.truncate(0, length)
            decoded(runner, name, 1)
            runner.cache.truncate(0, length)
            if at % 10 == 0:
                assert_residency_is_true(runner)
        assert interrupted > usual.lines / 2 / stride


@pytest.mark.parametrize("name", FAMILIES)
def test_being_interrupted_while_giving_up_is_no_harm_either(name: str) -> None:
    """Twice Ctrl-C: in the middle of a step, and while the next one clears up after it."""
    model = loaded(name)
    slots = model.slots(0.3)
    with running(model, HOW, slots, brain=RandomBrain(model.spec, slots)) as runner:
        prefilled(runner, name)
        length = runner.cache.length(0)
        for at in range(1, 60):
            with suppress(KeyboardInterrupt), Interrupt(150):
                runner.step(ForwardPass([Piece(0, truth(name).text[:1])]))
            runner.cache.truncate(0, length)
            with suppress(KeyboardInterrupt), Interrupt(at):
                runner.step(ForwardPass([Piece(0, truth(name).text[:1])]))
            runner.cache.truncate(0, length)
            decoded(runner, name, 0)
            runner.cache.truncate(0, length)
        assert_residency_is_true(runner)


def failing(call: Callable[..., None], at: int) -> Callable[..., None]:
    """Fails the `at`-th time it is called, by any caller; then works again."""
    calls, lock = [0], threading.Lock()

    def wrapped(*args: Any) -> None:
        with lock:
            calls[0] += 1
            now = calls[0]
        if now == at:
            raise RuntimeError("this time it fails")
        call(*args)

    return wrapped


@pytest.mark.parametrize("accelerator", ["none", "emulated"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_failing_kernel_fails_its_step_and_no_other(
    name: str, accelerator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(name)
    how = settings("best-split", "two-speed", "impact", accelerator=accelerator)
    slots = model.slots(0.3) if accelerator == "emulated" else 0
    brain = RandomBrain(model.spec, slots) if slots else None
    with running(model, how, slots, brain=brain) as runner:
        prefilled(runner, name)
        compute = model.store.kernel.compute
        per_step = model.spec.num_moe_layers * model.spec.top_k
        for at in range(1, per_step + 1):
            with monkeypatch.context() as patched:
                patched.setattr(model.store.kernel, "compute", failing(compute, at))
                with pytest.raises(RuntimeError, match="this time it fails"):
                    runner.step(ForwardPass([Piece(0, truth(name).text[at - 1 : at])]))
            decoded(runner, name, at - 1)
        if slots:
            assert_residency_is_true(runner)


@pytest.mark.parametrize("at", range(1, 9))
@pytest.mark.parametrize("name", FAMILIES)
def test_a_failing_copy_fails_a_step_and_its_slot_is_not_believed(
    name: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something is written when it fails; a background copy may fail the step after its own."""
    model = loaded(name)
    slots = model.slots(0.3)
    perform, copies = Copy.perform, count(1)

    def performed(copy: Copy) -> None:
        if next(copies) == at:
            copy.target.fill_(255)
            copy.source = copy.source[1:]
        perform(copy)

    with running(model, HOW, slots, brain=RandomBrain(model.spec, slots)) as runner:
        prefilled(runner, name)
        monkeypatch.setattr(Copy, "perform", performed)
        with pytest.raises(RuntimeError, match="must match the size"):
            all_decoded(runner, name, range(30))
        step = runner.cache.length(0) - len(PROMPT)
        all_decoded(runner, name, range(step, step + 2))
        assert_residency_is_true(runner)


def our_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("moesaic-")}


def test_closing_stops_every_thread() -> None:
    before = our_threads()
    model = loaded("olmoe")
    with running(model, slots=model.slots(0.3)) as runner:
        assert len(our_threads() - before) == 3, "two lanes and a link"
        prefilled(runner, "olmoe")
    assert our_threads() <= before


def test_closing_in_the_middle_of_a_step_stops_every_thread_too() -> None:
    before = our_threads()
    model = loaded("olmoe")
    slots = model.slots(0.3)
    for at in range(1, 300, 23):
        brain = RandomBrain(model.spec, slots)
        with (
            running(model, HOW, slots, brain=brain) as runner,
            suppress(KeyboardInterrupt),
            Interrupt(at),
        ):
            runner.step(ForwardPass([Piece(0, PROMPT)]))
        assert our_threads() <= before


def test_nothing_runs_on_when_getting_to_know_the_machine_is_interrupted() -> None:
    before, model = our_threads(), loaded("olmoe")
    for at in (300, 600, 900):
        with pytest.raises(KeyboardInterrupt), Interrupt(at), running(model, HOW, model.slots(0.3)):
            pass
        assert our_threads() <= before
