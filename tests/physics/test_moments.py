"""Is what waits for the end of a moment done once, before time goes on, knowing everything?"""

from __future__ import annotations

from moesaic.machines.sim.clock import Clock


def test_it_is_done_once_after_all_events_of_the_moment() -> None:
    clock, seen = Clock(), []

    def settle() -> None:
        seen.append(("settled", clock.now))

    def happen(name: str) -> None:
        seen.append((name, clock.now))
        clock.before_advancing(settle)

    for name in ("a", "b", "c"):
        clock.at(5, lambda name=name: happen(name))  # type: ignore[misc]
    clock.at(9, lambda: seen.append(("later", clock.now)))
    clock.advance(20)
    assert seen == [("a", 5), ("b", 5), ("c", 5), ("settled", 5), ("later", 9)]


def test_it_may_cause_events_of_the_same_moment() -> None:
    clock, seen = Clock(), []
    clock.before_advancing(lambda: clock.at(clock.now, lambda: seen.append(clock.now)))
    clock.at(7, lambda: seen.append(clock.now))
    clock.advance(10)
    assert seen == [0, 7]


def test_it_is_done_where_nothing_else_happens() -> None:
    clock, seen = Clock(), []
    clock.before_advancing(lambda: seen.append(clock.now))
    clock.advance(3)
    assert (seen, clock.now) == ([0], 3)
