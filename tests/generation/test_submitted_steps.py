"""A machine that runs steps by itself gets the next one while the last one's tokens are told: is
the text the same, and is nothing asked of it meanwhile?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from sampling_machine import BROKEN, Machine, request

from moesaic.engine.batcher import Batcher
from moesaic.engine.output_text import Shown
from moesaic.engine.request import Request, Update
from moesaic.engine.sampling.sampler import Sampler
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.machines.real.forward_pass import ForwardPass

GREEDY = SamplingParams(max_tokens=9, temperature=0.0)
DRAWN = SamplingParams(max_tokens=9, temperature=0.8, seed=4, top_k=20)


class SubmittingMachine(Machine):
    """While a step is under way, it must not be asked for anything else. Every token adds to the KV
    entries of its slot."""

    def __init__(self, submits: bool = True) -> None:
        super().__init__(finds=True)
        self._submits = submits
        self.under_way: ForwardPass | None = None
        self.submitted = self.stepped = 0
        self.fails: BaseException | None = None
        self.collected = False
        self.writes_as_it_reads = True
        self.entries: dict[int, int] = {}
        self.before: dict[int, int] = {}
        self.abandon: Callable[[], None] = lambda: None
        self.cache.length = lambda slot: self.entries.get(slot, 0)
        self.cache.truncate = self.truncate

    def step(self, work: ForwardPass) -> torch.Tensor:
        assert self.under_way is None
        assert not work.ahead
        self.stepped += 1
        return self._run(work)

    def placed(self, work: ForwardPass) -> ForwardPass:
        return work

    def refuses(self, work: ForwardPass) -> str | None:
        assert work.ahead
        return None if self._submits else "it does not submit"

    def submit(self, work: ForwardPass) -> None:
        assert self.under_way is None
        self.under_way = work
        self.submitted += 1

    def collect(self) -> torch.Tensor:
        work, self.under_way = self.under_way, None
        assert work is not None
        if self.fails is not None:
            error, self.fails = self.fails, None
            raise error
        return self._run(work)

    def _run(self, work: ForwardPass) -> torch.Tensor:
        for each in work.pieces:
            self.entries[each.slot] = self.entries.get(each.slot, 0) + len(each.tokens)
        return super().step(work)

    def truncate(self, slot: int, length: int) -> None:
        assert self.under_way is None
        self.entries[slot] = min(length, self.entries.get(slot, 0))

    def free_slot(self, slot: int) -> None:
        self.kv.drop(slot)
        self.truncate(slot, 0)


def batcher_of(machine: Machine, **changes: Any) -> Batcher:
    sizes = {"sequences": 3, "max_step_tokens": 8, "prefix_cache": False} | changes
    batcher = Batcher(machine, Sampler(), **sizes)  # type: ignore[arg-type]
    batcher.counter = MagicMock()
    return batcher


def steps(batcher: Batcher, count: int = 99) -> list[Update]:
    found: list[Update] = []
    while not batcher.idle and count:
        found += batcher.step()
        count -= 1
    return found


def requests_of(params: Sequence[SamplingParams]) -> list[Request]:
    prompts = ([1, 2, 3, 4, 5, 6, 7, 8, 9], [20], [60, 61], [70])
    return [request(i, prompts[i], each) for i, each in enumerate(params)]


def said(machine: Machine, *params: SamplingParams, **changes: Any) -> list[list[int]]:
    batcher, requests = batcher_of(machine, **changes), requests_of(params)
    for each in requests:
        batcher.submit(each)
    steps(batcher)
    assert all(each.finish_reason in ("length", "stop") for each in requests)
    return [list(each.sampling.seen) for each in requests]


BATCHES = {
    "greedy": [GREEDY],
    "drawn": [DRAWN],
    "of all kinds": [GREEDY, DRAWN, replace(DRAWN, seed=5, max_tokens=4)],
    "more than slots": [GREEDY, replace(DRAWN, max_tokens=3), DRAWN, replace(GREEDY, max_tokens=5)],
    "one stops": [GREEDY, replace(GREEDY, stop_token_ids=(24,)), DRAWN],
    "one needs logits": [GREEDY, replace(DRAWN, logprobs=1), DRAWN],
    "logits first": [replace(GREEDY, min_tokens=4), DRAWN],
}


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("changes", [{}, {"batch_invariant": True}, {"prefix_cache": True}])
def test_the_text_is_the_same(name: str, changes: dict[str, Any]) -> None:
    plain, submitting = SubmittingMachine(submits=False), SubmittingMachine()
    want = said(plain, *BATCHES[name], **changes)
    assert said(submitting, *BATCHES[name], **changes) == want
    assert submitting.submitted + submitting.stepped == plain.stepped  # no step was in vain
    if changes.get("batch_invariant") or name == "one needs logits":
        return
    assert submitting.submitted >= 3


def test_one_request_needs_one_step_of_its_own() -> None:
    machine = SubmittingMachine()
    said(machine, replace(GREEDY, max_tokens=9), max_step_tokens=16)
    assert (machine.stepped, machine.submitted) == (1, 8)


def test_the_next_step_is_under_way_before_tokens_are_delivered() -> None:
    machine = SubmittingMachine()
    batcher, (mine,) = batcher_of(machine, max_step_tokens=16), requests_of([GREEDY])
    told: list[bool] = []
    shown = mine.output.feed(0)

    def feed(token: int) -> Shown:
        told.append(machine.under_way is not None)
        return shown

    mine.output.feed = feed  # type: ignore[method-assign]
    batcher.submit(mine)
    steps(batcher)
    assert told == [True] * 8 + [False]


@pytest.mark.parametrize("kept", [False, True])
def test_a_cancelled_request_leaves_the_others_alone(kept: bool) -> None:
    """Whose tokens of the step under way are theirs still."""
    batch = [GREEDY, replace(DRAWN, max_tokens=20), DRAWN]
    want = said(SubmittingMachine(submits=False), *batch)
    machine = SubmittingMachine()
    batcher, requests = batcher_of(machine, prefix_cache=kept), requests_of(batch)
    for each in requests:
        batcher.submit(each)
    steps(batcher, 4)
    assert machine.under_way is not None
    slot = requests[1].slot or 0
    batcher.cancel(requests[1])
    computed = requests[1].computed_tokens
    assert machine.entries[slot] == (computed if kept and computed >= 16 else 0)
    ended = list(requests[1].sampling.seen)
    steps(batcher)
    assert list(requests[1].sampling.seen) == ended == want[1][: len(ended)]
    assert [list(requests[i].sampling.seen) for i in (0, 2)] == [want[0], want[2]]


def test_a_request_that_comes_joins_the_step_after() -> None:
    machine = SubmittingMachine()
    batcher, requests = batcher_of(machine), requests_of([GREEDY, DRAWN])
    batcher.submit(requests[0])
    steps(batcher, 4)
    assert machine.under_way is not None
    batcher.submit(requests[1])
    steps(batcher)
    assert [list(each.sampling.seen) for each in requests] == said(
        SubmittingMachine(submits=False), GREEDY, DRAWN
    )


def test_numbers_that_are_not_numbers_end_their_request_alone() -> None:
    machine = SubmittingMachine()
    batcher, requests = batcher_of(machine), requests_of([GREEDY, GREEDY])
    requests[1] = request(1, [BROKEN - 2], GREEDY)
    for each in requests:
        batcher.submit(each)
    steps(batcher)
    assert [each.finish_reason for each in requests] == ["length", "cancelled"]
    assert requests[1].sampling.seen[-1] == BROKEN


def test_nothing_is_under_way_where_the_caller_does_not_want_it() -> None:
    machine = SubmittingMachine()
    batcher, (mine,) = batcher_of(machine, max_step_tokens=16), requests_of([DRAWN])
    batcher.submit(mine)
    while not batcher.idle:
        batcher.step(ahead=len(mine.sampled) % 3 == 0)
        if len(mine.sampled) % 3 != 1:
            assert machine.under_way is None
        batcher.settle()
        assert machine.under_way is None
    assert [list(mine.sampling.seen)] == said(SubmittingMachine(submits=False), DRAWN)
    assert machine.submitted == 3


def test_a_step_counts_with_all_its_tokens() -> None:
    machine = SubmittingMachine()
    batcher, requests = batcher_of(machine), requests_of([GREEDY, DRAWN])
    for each in requests:
        batcher.submit(each)
    steps(batcher, 4)
    batcher.cancel(requests[1])
    batcher.step()
    calls = batcher.counter.add_step.call_args_list  # type: ignore[attr-defined]
    counted = [len(call.args[0].pieces) for call in calls]
    assert counted[-1] == 2


def test_two_interruptions_leave_nothing_behind() -> None:
    """While tokens are counted, and while that waits for the step under way."""
    machine = SubmittingMachine()
    batcher, requests = batcher_of(machine), requests_of([GREEDY, DRAWN])
    for each in requests:
        batcher.submit(each)
    steps(batcher, 4)
    batcher.counter.add_step.side_effect = KeyboardInterrupt  # type: ignore[attr-defined]
    collect = machine.collect

    def collected() -> torch.Tensor:
        output = collect()
        if machine.collected:
            raise KeyboardInterrupt
        machine.collected = True
        return output

    machine.collect = collected  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        batcher.step()
    assert batcher.idle
    assert machine.under_way is None
    assert not any(machine.entries.values())


def test_an_interruption_of_submitting_waits_for_the_step() -> None:
    machine = SubmittingMachine()
    batcher, requests = batcher_of(machine), requests_of([GREEDY])
    batcher.submit(requests[0])
    steps(batcher, 4)
    submit = machine.submit

    def interrupted(work: ForwardPass) -> None:
        submit(work)
        raise KeyboardInterrupt

    machine.submit = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        batcher.step()
    assert machine.under_way is None
    assert batcher.idle


@pytest.mark.parametrize("when", ["in a step", "cancelling", "closing"])
def test_an_interrupted_step_ends_all(when: str) -> None:
    machine = SubmittingMachine()
    batcher, requests = batcher_of(machine), requests_of([GREEDY, DRAWN])
    for each in requests:
        batcher.submit(each)
    steps(batcher, 4)
    machine.fails = KeyboardInterrupt()
    does: dict[str, Callable[[], object]] = {
        "in a step": batcher.step,
        "cancelling": partial(batcher.cancel, requests[0]),
        "closing": batcher.cancel_all,
    }
    with pytest.raises(KeyboardInterrupt):
        does[when]()
    batcher.cancel_all()
    assert batcher.idle
    assert [each.finish_reason for each in requests] == ["cancelled"] * 2
    again = requests_of([GREEDY])
    batcher.submit(again[0])
    steps(batcher)
    assert list(again[0].sampling.seen) == list(range(1, 19))


def test_a_submitted_step_that_fails_is_run_again() -> None:
    """Requests go on in ordinary steps with the same texts; another can be cancelled."""
    batch = [GREEDY, DRAWN, replace(DRAWN, max_tokens=20)]
    want = said(SubmittingMachine(submits=False), *batch)
    machine = SubmittingMachine()
    batcher, requests = batcher_of(machine), requests_of(batch)
    for each in requests:
        batcher.submit(each)
    steps(batcher, 3)
    for leaves in (False, True):
        assert machine.under_way is not None
        machine.fails = RuntimeError("lost")
        if leaves:
            batcher.cancel(requests[2])
        batcher.step()
        assert machine.fails is None
    steps(batcher)
    assert [list(each.sampling.seen) for each in requests[:2]] == want[:2]


@pytest.mark.parametrize("begun", [True, False])
def test_a_step_that_cannot_be_submitted_runs_as_another(begun: bool) -> None:
    """Whether the machine has begun it or not; its entries do not stay."""
    want = said(SubmittingMachine(submits=False), GREEDY, DRAWN)
    machine = SubmittingMachine()
    batcher, requests = batcher_of(machine), requests_of([GREEDY, DRAWN])
    submit, collect = machine.submit, machine.collect

    def failing(work: ForwardPass) -> None:
        if begun:
            submit(work)
        machine.before = dict(machine.entries)
        raise RuntimeError("lost")

    def discard() -> None:
        try:
            collect()
        finally:
            machine.entries = machine.before

    machine.submit, machine.abandon = failing, discard  # type: ignore[method-assign]
    for each in requests:
        batcher.submit(each)
    steps(batcher)
    assert [list(each.sampling.seen) for each in requests] == want


def test_an_interruption_while_tokens_are_told_waits_for_the_step() -> None:
    machine = SubmittingMachine()
    batcher, (mine,) = batcher_of(machine), requests_of([GREEDY])
    batcher.submit(mine)
    steps(batcher, 4)
    mine.output.feed = MagicMock(side_effect=KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        batcher.step()
    assert machine.under_way is None
    assert batcher.idle
