"""Do steps say the same whether they were launched ahead or not? Needs a GPU."""

from __future__ import annotations

from collections.abc import Hashable
from time import perf_counter, sleep

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from test_captured_timeline import runner_of

from moesaic.core.report import Timeline
from moesaic.engine.runner import Runner
from moesaic.machines.captured import decode_step, graph_steps, launch_ahead
from moesaic.machines.captured.launch_ahead import LaunchAhead
from moesaic.machines.real.forward_pass import ForwardPass, Piece

STATIC = ("static-experts", "pinned", "none")
LONGER_S = 0.1  # than a launch waits for its step


def conversation(runner: Runner) -> list[torch.Tensor]:
    """One sequence, then two, then one again; the caller is slow, or waits for the whole GPU."""
    found = [runner.step(ForwardPass([Piece(slot, [3 + slot, 4, 5, 6])])) for slot in range(2)]
    for number in range(24):
        both = 8 <= number < 14
        inputs = [Piece(slot, [7 * number + slot]) for slot in range(1 + both)]
        found.append(runner.step(ForwardPass(inputs)))
        if number in (4, 12, 20):
            sleep(LONGER_S)
        if number in (6, 11):
            torch.cuda.synchronize()
        if number == 17:  # not captured together with what is launched
            found.append(runner.step(ForwardPass([Piece(1, [8, 9, 10])])))
    return found


def noted_claims(monkeypatch: pytest.MonkeyPatch) -> list[torch.cuda.Event | None]:
    """What every step claims from here on."""
    claimed = []
    claim = LaunchAhead.claim

    def noted(self: LaunchAhead, kind: Hashable) -> torch.cuda.Event | None:
        claimed.append(claim(self, kind))
        return claimed[-1]

    monkeypatch.setattr(LaunchAhead, "claim", noted)
    return claimed


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "deepseek-v2-lite"])
def test_launches_ahead_change_no_result(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same plans, since nothing is decided by time: the same bits. A timeline needs what its
    step has left, and lets nothing be launched ahead."""
    claimed = noted_claims(monkeypatch)
    logits = []
    for plain in (True, False):
        claimed.clear()
        runner = runner_of(name, STATIC, Timeline(enabled=plain, engine=True))
        logits.append(conversation(runner))
        runner.close()
        used = sum(each is not None for each in claimed)
        assert used == 0 if plain else used >= 10
    assert all(torch.equal(one, other) for one, other in zip(*logits, strict=True))


def test_long_steps_are_not_launched_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies in their graphs would stand before those that prepare the step."""
    for module in (decode_step, graph_steps):
        monkeypatch.setattr(module, "LONG_STEP", 2)
    claimed = noted_claims(monkeypatch)
    runner = runner_of("qwen3-30b-a3b", STATIC, Timeline(enabled=False))
    conversation(runner)
    runner.close()
    assert len(claimed) == 24
    assert [number for number in range(8, 14) if claimed[number] is not None] == []
    assert any(each is not None for each in claimed)


def test_who_waits_for_the_whole_gpu_waits_a_moment() -> None:
    runner = runner_of("qwen3-30b-a3b", STATIC, Timeline())
    runner.step(ForwardPass([Piece(0, [3, 4, 5, 6])]))
    for number in range(6):
        runner.step(ForwardPass([Piece(0, [number])]))
    began = perf_counter()
    torch.cuda.synchronize()
    assert perf_counter() - began < 5
    runner.close()
    torch.cuda.synchronize()


def test_after_an_interrupt_nothing_waits_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is noticed when the next step has just been launched; the user goes on."""
    runner = runner_of("qwen3-30b-a3b", STATIC, Timeline())
    runner.step(ForwardPass([Piece(0, [3, 4, 5, 6])]))
    for number in range(3):
        runner.step(ForwardPass([Piece(0, [number])]))
    launched = launch_ahead._launched

    def interrupted(graph: torch.cuda.CUDAGraph, ended: torch.cuda.Event) -> torch.cuda.Event:
        launched(graph, ended)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(launch_ahead, "_launched", interrupted)
        with pytest.raises(KeyboardInterrupt):
            runner.step(ForwardPass([Piece(0, [3])]))
    torch.cuda.synchronize()
    for number in range(3, 6):
        runner.step(ForwardPass([Piece(0, [number])]))
    runner.close()
    torch.cuda.synchronize()
