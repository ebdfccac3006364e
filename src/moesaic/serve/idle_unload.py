"""Frees the memory of an engine that has had no requests for a while."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Protocol

from moesaic.engine.async_llm import AsyncLLM
from moesaic.serve.generation import Generation
from moesaic.serve.metrics import ServerMetrics
from moesaic.serve.server_settings import ServerSettings

_MOST_S, _SOON_S = 1.0, 0.01  # between two looks


class Served(Protocol):
    """An engine, its answers, and when the last one was asked for."""

    llm: AsyncLLM
    settings: ServerSettings
    metrics: ServerMetrics
    generations: dict[Generation, None]
    last_used: float


async def unload_when_idle(service: Served) -> None:
    """Runs until it is cancelled."""
    limit = service.settings.idle_unload_s
    if limit is None:
        return
    while True:
        await asyncio.sleep(min(_MOST_S, limit / 4))
        idle = not service.generations and monotonic() - service.last_used >= limit
        if idle and service.llm.state.ready:
            service.llm.unload()
            while service.llm.state.ready and not service.generations:  # until it is carried out
                await asyncio.sleep(_SOON_S)
            service.metrics.unloads += not service.llm.state.ready
