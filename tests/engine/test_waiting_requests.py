"""Who of those that wait is next, and what the queue remembers of those who asked?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moesaic.engine.waiting_requests import WaitingRequests


@dataclass(eq=False)
class Waiting:
    """What the queue reads of a request."""

    client: str
    priority: int = 0
    pending_tokens: int = 10


def queue_of(*requests: Waiting) -> tuple[WaitingRequests, list[Any]]:
    queue, made = WaitingRequests(), [*requests]
    for request in made:
        queue.add(request)  # type: ignore[arg-type]
    return queue, made


def test_the_client_that_was_served_least_is_next() -> None:
    queue, (first, second) = queue_of(Waiting("one"), Waiting("two"))
    assert [*queue] == [first, second]
    queue.serve("one", written=1)
    assert [*queue] == [second, first]
    queue.serve("two", read=3)  # a generated token counts as two of a prompt
    assert [*queue] == [first, second]


def test_who_comes_back_is_owed_nothing() -> None:
    queue, (waits,) = queue_of(Waiting("patient"))
    queue.serve("patient", read=100)
    late: Any = Waiting("late")
    queue.add(late)
    queue.serve("late", read=1)
    assert [*queue] == [waits, late]


def test_only_those_who_run_or_wait_are_remembered() -> None:
    """A server has ever more clients: one per user of the program that asks it."""
    queue, (waits, leaves) = queue_of(Waiting("waits"), Waiting("leaves"))
    for client in ("waits", "leaves", "runs", "ended"):
        queue.serve(client, read=5)
    queue.remove(leaves)
    queue.forget_all_but({"runs"})
    assert {*queue._served} == {"waits", "runs"}
    again: Any = Waiting("leaves")
    queue.add(again)
    assert [*queue] == [waits, again]
