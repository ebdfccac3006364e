"""Asks the engine for insights, at most twice a second however many clients watch."""

from __future__ import annotations

import asyncio
from time import monotonic

from moesaic.engine.async_llm import AsyncLLM
from moesaic.engine.insight.facts import Insight

PERIOD_S = 0.5
_PATIENCE_S = 2.0  # for a step to end, before what is known from earlier is shown
_FIRST_STEP_S = 0.1  # between looks for the first step that was noted
_LOOKS = 20


class Watcher:
    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm
        self._asking: asyncio.Task[Insight] | None = None
        self._latest: Insight | None = None
        self._latest_at = 0.0
        self.captures = False  # whether a client has asked for the next steps

    async def latest(self) -> Insight:
        """Not older than a step and `PERIOD_S`, unless a step takes very long."""
        if self._latest is not None and monotonic() - self._latest_at < PERIOD_S:
            return self._latest
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        asking = self._asking
        await asyncio.wait({asking}, timeout=_PATIENCE_S)
        if self._latest is not None and not asking.done():
            return self._latest
        return await asyncio.shield(asking)

    async def _ask(self) -> Insight:
        try:
            found = await self._llm.insight()
            for _ in range(_LOOKS):  # steps are noted from the first question on
                if found.step is not None or not found.stats.queue.running:
                    break
                await asyncio.sleep(_FIRST_STEP_S)
                found = await self._llm.insight()
            self._latest, self._latest_at = found, monotonic()
            return found
        except BaseException:
            self._latest = None
            raise
        finally:
            self._asking = None
