"""Does the link copy one expert at a time, demanded ones first, at its own pace?"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from time import sleep

import pytest
import torch
from small_store import small_store

from moesaic.core.layer_plan import Move
from moesaic.core.routing import ExpertId
from moesaic.machines.layerwise.probes import copies_running
from moesaic.machines.real.copy_engine import Copy, CopyEngine, LinkSpeed
from moesaic.machines.real.emulated_accelerator import EmulatedAccelerator
from moesaic.machines.real.slot_table import Slot

SIZE = 64
SLOW_NS = 2_000_000


@pytest.fixture
def link() -> Iterator[CopyEngine]:
    engine = CopyEngine(LinkSpeed(bandwidth_gb_s=1000.0, latency_us=SLOW_NS / 1000))
    yield engine
    engine.close()


def copy_of(number: int, after: threading.Event | None = None) -> Copy:
    source = torch.full((SIZE,), number, dtype=torch.uint8)
    slot = Slot(torch.zeros(SIZE, dtype=torch.uint8))
    return Copy(Move(0, number), source, slot.block, "transfer", after, slot)


def held_up(link: CopyEngine) -> tuple[Copy, threading.Event]:
    """A copy that has begun and cannot go on before the event."""
    go_on = threading.Event()
    first = copy_of(100, after=go_on)
    link.demand([first])
    while not first.started:
        sleep(0.0005)
    return first, go_on


def order(copies: list[Copy]) -> list[int]:
    for copy in copies:
        copy.wait()
    return [copy.move.expert for copy in sorted(copies, key=lambda copy: copy.start_ns)]


def test_what_was_copied_is_there_when_it_has_arrived(link: CopyEngine) -> None:
    copies = [copy_of(n) for n in (3, 5)]
    link.demand(copies)
    for copy in copies:
        copy.wait()
        assert torch.equal(copy.target, copy.source)
        assert copy.slot is not None
        assert copy.slot.holds == ExpertId(0, copy.move.expert)


def test_one_at_a_time_and_each_takes_at_least_the_links_time(link: CopyEngine) -> None:
    copies = [copy_of(n) for n in range(4)]
    link.demand(copies)
    assert order(copies) == [0, 1, 2, 3]
    for copy in copies:
        assert copy.end_ns - copy.start_ns >= link.speed.duration_ns(SIZE) >= SLOW_NS
    for earlier, later in pairwise(copies):
        assert later.start_ns >= earlier.end_ns


def test_duration_is_latency_and_bytes_over_bandwidth() -> None:
    speed = LinkSpeed(bandwidth_gb_s=2.0, latency_us=5.0)
    assert speed.duration_ns(0) == 5_000
    assert speed.duration_ns(4_000_000) == 5_000 + 2_000_000


def test_demanded_copies_go_before_background_ones(link: CopyEngine) -> None:
    first, go_on = held_up(link)
    background, demanded = [copy_of(1), copy_of(2)], [copy_of(3), copy_of(4)]
    link.offer(background)
    link.demand(demanded)
    go_on.set()
    assert order([first, *background, *demanded]) == [100, 3, 4, 1, 2]


def test_recalled_copies_that_have_not_begun_never_do(link: CopyEngine) -> None:
    first, go_on = held_up(link)
    background, demanded = [copy_of(1), copy_of(2)], copy_of(3)
    link.offer(background)
    link.cancel_background()
    link.demand([demanded])
    go_on.set()
    assert order([first, demanded]) == [100, 3]
    assert not any(copy.started or copy.arrived.is_set() for copy in background)
    assert not any(copy.target.any() for copy in background)


def test_a_background_copy_that_has_begun_is_never_interrupted(link: CopyEngine) -> None:
    go_on = threading.Event()
    begun, later = copy_of(1, after=go_on), copy_of(2)
    link.offer([begun, later])
    while not begun.started:
        sleep(0.0005)
    demanded = copy_of(3)
    link.demand([demanded])
    link.cancel_background()
    go_on.set()
    assert order([begun, demanded]) == [1, 3]
    assert torch.equal(begun.target, begun.source)
    assert not later.started


def test_a_copy_waits_until_its_place_is_free(link: CopyEngine) -> None:
    first, free = held_up(link)
    sleep(0.01)
    assert not first.target.any(), "the place was overwritten while in use"
    free.set()
    first.wait()
    assert torch.equal(first.target, first.source)


def test_the_time_a_copy_waited_for_its_place_is_not_link_time(link: CopyEngine) -> None:
    first, free = held_up(link)
    begun = first.start_ns
    free.set()
    first.wait()
    assert first.start_ns > begun
    assert first.end_ns - first.start_ns >= SLOW_NS


def test_halting_forgets_what_waits_and_ends_what_goes_on(link: CopyEngine) -> None:
    first, go_on = held_up(link)
    waiting = [copy_of(1), copy_of(2)]
    link.demand(waiting[:1])
    link.offer(waiting[1:])
    threading.Timer(0.005, go_on.set).start()
    link.halt()
    assert first.arrived.is_set()
    last = copy_of(3)
    link.demand([last])
    last.wait()
    assert not any(copy.started for copy in waiting)


def test_a_failed_copy_fails_only_its_waiter(link: CopyEngine) -> None:
    bad, good = copy_of(1), copy_of(2)
    bad.source = torch.zeros(SIZE + 1, dtype=torch.uint8)
    link.demand([bad, good])
    with pytest.raises(RuntimeError, match="size"):
        bad.wait()
    assert bad.slot is not None
    assert bad.slot.holds is None, "its content is unknown"
    good.wait()
    assert torch.equal(good.target, good.source)


def test_closing_ends_the_thread_and_begins_nothing_new() -> None:
    engine = CopyEngine(LinkSpeed(1000.0, SLOW_NS / 1000))
    first, go_on = held_up(engine)
    waiting = copy_of(1)
    engine.demand([waiting])
    threading.Timer(0.005, go_on.set).start()
    engine.close()
    assert not engine._thread.is_alive()
    assert first.arrived.is_set()
    assert not waiting.started


def test_a_lost_notification_delays_and_does_not_hang(
    link: CopyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a copy nor the end of the thread may hang on one."""
    monkeypatch.setattr(link._changed, "notify", lambda: None)
    sleep(0.05)  # the thread waits
    copy = copy_of(1)
    link.demand([copy])
    assert copy.arrived.wait(10)
    sleep(0.05)
    closing = threading.Thread(target=link.close, daemon=True)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()


def test_the_link_copies_all_the_time_something_is_measured_beside_it() -> None:
    """And is idle again afterwards."""
    store = small_store()
    accelerator = EmulatedAccelerator(store, 2, LinkSpeed(1000.0, 100.0))
    copied: list[Copy] = []
    offer = accelerator.link.offer

    def note(copies: Sequence[Copy]) -> None:
        copied.extend(copies)
        offer(copies)

    accelerator.link.offer = note  # type: ignore[method-assign]
    try:
        with copies_running(store, accelerator):
            sleep(0.01)
            assert sum(copy.started for copy in copied) > 1
        begun = sum(copy.started for copy in copied)
        sleep(0.005)
        assert sum(copy.started for copy in copied) == begun < len(copied)
    finally:
        accelerator.close()
