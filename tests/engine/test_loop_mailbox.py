"""Does all that threads put into a mailbox reach its queue, in order, with few wake-ups?"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from moesaic.engine.loop_mailbox import LoopMailbox


def test_all_arrives_in_order_from_several_threads() -> None:
    count, threads = 2000, 4

    async def collect() -> list[list[int]]:
        mailbox = LoopMailbox(asyncio.get_running_loop())
        queues: list[asyncio.Queue[Any]] = [asyncio.Queue() for _ in range(threads)]

        def put(queue: asyncio.Queue[Any]) -> None:
            for number in range(count):
                mailbox.put(queue, number)

        for queue in queues:
            threading.Thread(target=put, args=(queue,)).start()
        return [[await queue.get() for _ in range(count)] for queue in queues]

    found = asyncio.run(asyncio.wait_for(collect(), 60))
    assert found == [list(range(count))] * threads


def test_what_comes_together_wakes_the_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def collect() -> None:
        loop, woken = asyncio.get_running_loop(), []
        wake = loop.call_soon_threadsafe

        def noted(*call: Any) -> None:
            woken.append(call)
            wake(*call)

        monkeypatch.setattr(loop, "call_soon_threadsafe", noted)
        mailbox, queue = LoopMailbox(loop), asyncio.Queue[int]()
        for _ in range(2):
            for number in range(64):  # the loop cannot run meanwhile
                mailbox.put(queue, number)
            assert [await queue.get() for _ in range(64)] == list(range(64))
        assert len(woken) == 2

    asyncio.run(collect())


def test_a_closed_loop_is_said_every_time() -> None:
    loop = asyncio.new_event_loop()
    mailbox = LoopMailbox(loop)
    loop.close()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="closed"):
            mailbox.put(asyncio.Queue(), 1)
