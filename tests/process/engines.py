"""Engines of the bundled model, in this process and in one of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import asdict
from typing import Any, TypeVar

from moesaic import AsyncLLM, ProcessOptions, SamplingParams
from moesaic.engine.completion import Completion

T = TypeVar("T")
SOON_S = 60
# Equal bits, however requests meet in steps.
SAME: dict[str, Any] = {"threads": 1, "dtype": "fp32", "batch_invariant": True}
SMALL: dict[str, Any] = {"threads": 1, "max_sequences": 4}


def soon(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, SOON_S))


def engine(process: bool | ProcessOptions = True, **options: Any) -> AsyncLLM:
    return AsyncLLM(process=process, **(SMALL | options))


def greedy(tokens: int, **others: Any) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=0.0, **others)


def without_times(completions: list[Completion]) -> list[dict[str, Any]]:
    known = [asdict(each) for each in completions]
    for each in known:
        assert each.pop("timings")["total_s"] >= 0
    return known


def pid_of(model: AsyncLLM) -> int:
    assert model._client is not None
    pid = model._client.process_id
    assert pid is not None
    return pid


async def until(condition: Any) -> None:
    async with asyncio.timeout(SOON_S):
        while not condition():
            await asyncio.sleep(0.005)
