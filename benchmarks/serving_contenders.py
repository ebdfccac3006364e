"""Who is measured by `benchmarks.serving`: this server, llama.cpp's, the engine without HTTP."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.http_exchange import Exchange, exchange
from benchmarks.load_process import Answer, Served, serve, summary, warming
from benchmarks.load_workload import Ask, Workload
from benchmarks.server_process import ServerProcess, children, cpu_seconds, free_port
from moesaic import AsyncLLM

LLAMA = "llama-server"
DIRECT = "without HTTP"
_PATH = "/v1/completions"


@dataclass(slots=True)
class HttpContender:
    """A server that is asked as any client would ask."""

    server: ServerProcess
    vocabulary: int
    context: int
    options: dict[str, Any]
    warmed: int = 0  # requests at the same time

    def turn(self, work: Workload) -> dict[str, Any]:
        if work.requests > self.warmed:
            asyncio.run(self._serve(warming(work.requests, self.vocabulary)))
            self.warmed = work.requests
        before = self._cpu()
        batches = work.draw(self.vocabulary, self.context)
        served = [asyncio.run(self._serve(asks)) for asks in batches]
        found = summary(served)
        front, whole = (now - then for now, then in zip(self._cpu(), before, strict=True))
        found["front_cpu_ms_token"] = 1e3 * front / found["output_tokens"]
        found["cpu_ms_token"] = 1e3 * whole / found["output_tokens"]
        return found | {"memory_gb": {"peak": self.server.memory() / 1e9}}

    def _cpu(self) -> tuple[float, float]:
        """Of the process that takes requests, and with what it has started."""
        front = cpu_seconds(self.server.pid)
        return front, front + sum(map(cpu_seconds, children(self.server.pid)))

    async def _serve(self, asks: Sequence[Ask]) -> Served:
        """What has come is read when all have ended."""
        began = perf_counter()
        found = await asyncio.gather(*(self._ask(each, began + each.arrival_s) for each in asks))
        answers = [
            answer_of(each, ask, began + ask.arrival_s)
            for each, ask in zip(found, asks, strict=True)
        ]
        return Served(began, answers)

    async def _ask(self, ask: Ask, due: float) -> Exchange:
        await asyncio.sleep(max(due - perf_counter(), 0))
        return await exchange(self.server.address, _PATH, body_of(ask))


@dataclass(slots=True)
class DirectContender:
    """The same engine in its own process, before it this one."""

    llm: AsyncLLM
    vocabulary: int
    context: int
    options: dict[str, Any]
    warmed: int = 0

    def turn(self, work: Workload) -> dict[str, Any]:
        return asyncio.run(self._turn(work))

    async def _turn(self, work: Workload) -> dict[str, Any]:
        if work.requests > self.warmed:
            await serve(self.llm, warming(work.requests, self.vocabulary))
            self.warmed = work.requests
        batches = work.draw(self.vocabulary, self.context)
        before = cpu_seconds(os.getpid())
        found = summary([await serve(self.llm, asks) for asks in batches])
        spent = cpu_seconds(os.getpid()) - before
        return found | {"front_cpu_ms_token": 1e3 * spent / found["output_tokens"]}


def body_of(ask: Ask) -> dict[str, Any]:
    """The same for both servers."""
    return {
        "prompt": ask.prompt,
        "max_tokens": ask.answer,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def answer_of(found: Exchange, ask: Ask, due: float) -> Answer:
    answer = Answer(due, len(ask.prompt), times_of(found, ask.answer))
    if len(answer.times) != ask.answer:
        answer.failure = f"status {found.status}, {bytes(found.raw[-300:])!r}"
        answer.times = []
    return answer


def times_of(found: Exchange, tokens: int) -> list[float]:
    """When each token came. Of several in one piece, or of some without a text, the first and the
    last count."""
    times = [each.at for each in found.events() if text_of(each.value())]
    if found.status != 200 or not found.ended or not times:
        return []
    return [*times[:-1], *[times[-1]] * (tokens - len(times) + 1)][:tokens]


def text_of(event: dict[str, Any]) -> str:
    choices = event.get("choices") or [{}]
    return str(choices[0].get("text") or "")


def cached_of(found: Exchange) -> int | None:
    """Tokens of the prompt that were not read again, as the server says."""
    for event in reversed(found.events()):
        value = event.value()
        if timings := value.get("timings"):  # llama.cpp's
            return int(timings.get("cache_n", 0))
        if usage := value.get("usage"):
            return int((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))
    return None


def llama_server(
    program: Path, model: Path, sequences: int, context: int, threads: int, placement: Sequence[str]
) -> ServerProcess:
    """With room for so many sequences of this length at once, continuous batching and its cache of
    prefixes, which are its defaults, and flash attention. Prompts are read 2,048 tokens at a time,
    or it would read them in smaller parts than we do."""
    port = free_port()
    command = [
        *(str(program), "-m", str(model), "--host", "127.0.0.1", "--port", str(port)),
        *("-t", str(threads), "-tb", str(threads), "-fa", "on", *placement),
        *("-np", str(sequences), "-c", str(sequences * context), "--slots", "--no-webui"),
        *("-b", "2048", "-ub", "2048", "--cache-reuse", "256"),
    ]
    return ServerProcess(command, port, gpu="99" in placement)
