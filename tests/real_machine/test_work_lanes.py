"""Do lanes work in order, one job at a time, and do errors reach the caller that waits?"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import sleep

import pytest
import torch

from moesaic.machines.real import lane as lane_module
from moesaic.machines.real.lane import InlineLane, Lane, ThreadLane


@pytest.fixture(params=[InlineLane, lambda: ThreadLane("test")], ids=["inline", "thread"])
def lane(request: pytest.FixtureRequest) -> Iterator[Lane]:
    made: Lane = request.param()
    yield made
    made.close()


@pytest.fixture
def thread_lane() -> Iterator[ThreadLane]:
    made = ThreadLane("test")
    yield made
    made.close()


def failing(error: BaseException) -> Callable[[], None]:
    def job() -> None:
        raise error

    return job


def test_jobs_are_done_in_order(lane: Lane) -> None:
    done: list[int] = []
    for round_ in range(3):
        for i in range(50):
            lane.submit(lambda n=50 * round_ + i: done.append(n))  # type: ignore[misc]
        lane.wake()
        lane.join()
        assert done == list(range(50 * (round_ + 1)))


def test_the_caller_does_inline_work_and_a_thread_the_other(thread_lane: ThreadLane) -> None:
    thread_ids: list[int] = []
    for each in (InlineLane(), thread_lane):
        each.submit(lambda: thread_ids.append(threading.get_ident()))
        each.join()
    assert thread_ids[0] == threading.get_ident()
    assert thread_ids[1] != threading.get_ident()


@pytest.mark.parametrize("fails", [False, True])
def test_a_waiting_lane_keeps_nothing_of_its_last_job(fails: bool, thread_lane: ThreadLane) -> None:
    class Job:
        def __call__(self) -> None:
            if fails:
                raise ValueError

    def work() -> weakref.ref[Job]:
        job = Job()
        thread_lane.submit(job)
        with suppress(ValueError):
            thread_lane.join()
        return weakref.ref(job)

    job, patience = work(), 100
    while job() is not None and patience:  # a job is done a moment before it is forgotten
        sleep(0.01)
        gc.collect()
        patience -= 1
    assert job() is None


def test_a_job_runs_in_inference_mode_with_the_lanes_own_threads() -> None:
    seen: list[object] = []
    lane = ThreadLane("test", threads=1)
    lane.submit(lambda: seen.extend((torch.is_inference_mode_enabled(), torch.get_num_threads())))
    lane.join()
    lane.close()
    assert seen == [True, 1]


def test_waking_waits_for_the_beginning_not_for_the_end(thread_lane: ThreadLane) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def job() -> None:
        begun.set()
        go_on.wait()

    thread_lane.submit(job)
    thread_lane.submit(lambda: None)
    thread_lane.wake()
    assert begun.wait(timeout=60)
    thread_lane.wake()  # a second time it has nothing to wait for
    go_on.set()
    thread_lane.join()


def test_the_first_failure_is_raised_once_everything_is_done(thread_lane: ThreadLane) -> None:
    done: list[int] = []
    thread_lane.submit(failing(ValueError("first")))
    thread_lane.submit(failing(KeyError("second")))
    thread_lane.submit(lambda: done.append(1))
    with pytest.raises(ValueError, match="first"):
        thread_lane.join()
    assert done == [1]
    thread_lane.join()  # it was said once
    thread_lane.submit(lambda: done.append(2))
    thread_lane.join()
    assert done == [1, 2]


def test_even_an_exit_does_not_end_the_thread(thread_lane: ThreadLane) -> None:
    thread_lane.submit(failing(SystemExit()))
    with pytest.raises(SystemExit):
        thread_lane.join()
    thread_lane.submit(lambda: None)
    thread_lane.join()


def test_inline_failures_are_the_callers() -> None:
    with pytest.raises(ValueError, match="here"):
        InlineLane().submit(failing(ValueError("here")))


@pytest.mark.parametrize("woken", [False, True])
def test_after_a_reset_nothing_is_left_of_earlier_jobs(
    thread_lane: ThreadLane, woken: bool
) -> None:
    done: list[int] = []
    thread_lane.submit(failing(ValueError("forgotten")))
    thread_lane.submit(lambda: done.append(1))
    if woken:
        thread_lane.wake()
    thread_lane.reset()
    assert done == [1], "what was submitted has ended"
    thread_lane.join()
    thread_lane.submit(lambda: done.append(2))
    thread_lane.wake()
    thread_lane.join()
    assert done == [1, 2]


def test_a_reset_repairs_what_an_interruption_left_behind(thread_lane: ThreadLane) -> None:
    """Counted but never handed over; then handed over but never counted."""
    thread_lane._open += 1
    thread_lane.reset()
    thread_lane.join()
    thread_lane._jobs.put(failing(ValueError("never counted")))
    thread_lane.reset()
    thread_lane.join()


@pytest.mark.parametrize("waiting", ["join", "wake", "reset"])
def test_a_thread_that_died_is_noticed(waiting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "_LOOK_AGAIN_S", 0.01)
    lane = ThreadLane("doomed")
    lane.close()
    lane.submit(lambda: None)
    with pytest.raises(RuntimeError, match="moesaic-doomed died"):
        getattr(lane, waiting)()
