"""Does an engine in a process of its own answer questions as one in this process does, and what
becomes of them when it is lost?"""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest
from engines import engine, greedy, pid_of, soon

from moesaic.core.errors import EngineEnded, ImpossibleSetting
from moesaic.engine.insight.capture_order import CaptureOrder
from moesaic.engine.insight.facts import Insight


def test_it_says_what_it_knows_and_captures_its_steps() -> None:
    async def run() -> None:
        llm = engine()
        answering = asyncio.create_task(
            llm.generate([[5, 6, 7]], greedy(900, ignore_eos=True), client="a client")
        )
        found: Insight | None = None
        while found is None or found.step is None or not found.conversations:
            found = await llm.insight()
        (conversation,) = found.conversations
        assert llm._client is not None
        (request,) = llm._client._pending.values()
        assert conversation.id == request.request.id, "as this caller knows it"
        assert (conversation.client, conversation.state) == ("a client", "running")
        assert len(found.step.layers) == found.engine.layers
        captured = await llm.capture(CaptureOrder("perfetto", 3), 60)
        events = json.loads(captured)["traceEvents"]
        assert sum(event.get("cat") == "step" for event in events) == 3
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        while (await llm.insight()).stats.queue.running:
            await asyncio.sleep(0.01)
        with pytest.raises(ImpossibleSetting, match="no step ran while the capture waited"):
            await llm.capture(CaptureOrder("routing", 3), 0.05)
        await llm.close()

    soon(run())


def test_questions_to_an_engine_that_is_lost_fail() -> None:
    async def run() -> None:
        llm = engine()
        asked = asyncio.create_task(llm.capture(CaptureOrder("perfetto", 3), 60))
        await llm.insight()  # the capture was ordered before
        os.kill(pid_of(llm), signal.SIGKILL)
        with pytest.raises(EngineEnded, match="ended"):
            await asked
        with pytest.raises(EngineEnded):
            await llm.insight()
        await llm.close()

    soon(run())
