"""Frees the memory of an engine that has had no requests for a while."""

from __future__ import annotations

import asyncio
from time import monotonic

from moesaic.serve.service import Service

_MOST_S = 1.0  # between two looks


async def unload_when_idle(service: Service) -> None:
    """Runs until it is cancelled."""
    limit = service.settings.idle_unload_s
    if limit is None:
        return
    while True:
        await asyncio.sleep(min(_MOST_S, limit / 4))
        idle = not service.generations and monotonic() - service.last_used >= limit
        if idle and service.llm.state.ready:
            service.metrics.unloads += 1
            service.llm.unload()
            while service.llm.state.ready:  # until the command is carried out
                await asyncio.sleep(0.01)
