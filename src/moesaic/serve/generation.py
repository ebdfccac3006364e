"""The answers to one API call while the engine writes them: what they have cost, and how they end
early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from time import perf_counter
from typing import Any, NamedTuple

from moesaic.core.units import NS_PER_S
from moesaic.engine.async_llm import AsyncLLM
from moesaic.engine.completion import Chunk
from moesaic.engine.request import Request
from moesaic.serve.metrics import ServerMetrics
from moesaic.serve.request_record import RequestRecord


class Part(NamedTuple):
    """The next piece of one answer."""

    choice: int  # the answer's place among those of the call
    request: Request
    chunk: Chunk


class Generation:
    """Its parts are read once; `end` follows in any case."""

    def __init__(
        self,
        llm: AsyncLLM,
        requests: Sequence[Request],
        record: RequestRecord,
        metrics: ServerMetrics,
    ) -> None:
        self.requests, self.record = tuple(requests), record
        self.on_end: Callable[[], object] = lambda: None  # called once
        self._llm, self._metrics = llm, metrics
        self._begun = perf_counter()
        self._task: asyncio.Task[Any] | None = None
        self._stopped: Exception | None = None
        self._ended = False
        record.prompt_tokens = self.prompt_tokens

    @property
    def unfinished(self) -> int:
        return sum(request.finish_reason is None for request in self.requests)

    @property
    def prompt_tokens(self) -> int:
        """Answers to the same prompt share it."""
        return sum(len(request.prompt) for request in self.requests if request.number == 0)

    @property
    def generated_tokens(self) -> int:
        return sum(len(request.sampled) for request in self.requests)

    @property
    def cached_tokens(self) -> int:
        return sum(request.cached_tokens for request in self.requests if request.number == 0)

    def usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.generated_tokens,
            "total_tokens": self.prompt_tokens + self.generated_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    def stop(self, error: Exception) -> None:
        """End it: the reader of its parts gets this error."""
        self._stopped = error
        if self._task is not None:
            self._task.cancel()

    async def parts(self) -> AsyncGenerator[Part, None]:
        """Closing it cancels the answers in the engine."""
        self._task = task = asyncio.current_task()
        places = {request: place for place, request in enumerate(self.requests)}
        last: dict[Request, float] = {}
        try:
            if self._stopped is not None:
                raise self._stopped
            async with aclosing(self._llm.follow(self.requests)) as updates:
                async for request, chunk in updates:
                    if chunk.token is not None:
                        self._observe(request, last)
                    yield Part(places[request], request, chunk)
        except asyncio.CancelledError:
            if self._stopped is None or task is None:
                raise
            task.uncancel()
            raise self._stopped from None
        finally:
            self.end()

    def end(self) -> None:
        """Its requests have ended, or were never submitted."""
        if self._ended:
            return
        self._ended = True
        self.on_end()
        self._metrics.answer.observe(perf_counter() - self._begun)
        record = self.record
        record.generated_tokens, record.cached_tokens = self.generated_tokens, self.cached_tokens
        record.prefix_differs = self._prefix_differs()
        reasons = [request.finish_reason or "cancelled" for request in self.requests]
        record.finish_reason = next((each for each in reasons if each != "stop"), "stop")
        first = [
            (request.first_token_ns - request.submitted_ns) / NS_PER_S
            for request in self.requests
            if request.first_token_ns is not None
        ]
        record.time_to_first_token_s = min(first, default=None)

    @contextmanager
    def ended_on_error(self) -> Iterator[None]:
        """While its answer is made: an error leaves nothing of it in the engine's account."""
        try:
            yield
        except BaseException:
            self.end()
            raise

    def _prefix_differs(self) -> dict[str, object] | None:
        """Why a prompt that begins like a kept one was read."""
        several = (each.differs for each in self.requests)
        found = next((each for each in several if each is not None and each.position), None)
        if found is None:
            return None
        text = self._llm.input_processor.tokenizer.token_text
        kept, asked = text(found.kept), text(found.asked)
        return {"token": found.position, "kept": kept, "asked": asked}

    def _observe(self, request: Request, last: dict[Request, float]) -> None:
        now = perf_counter()
        if request in last:
            self._metrics.between_tokens.observe(now - last[request])
        else:
            self._metrics.first_token.observe(now - self._begun)
        last[request] = now
