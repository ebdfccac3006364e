"""The engine as endpoints see it: which model it is, which requests it has, and whether it may have
more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from time import monotonic
from typing import TypeVar

from moesaic.engine.async_llm import AsyncLLM
from moesaic.engine.input_processor import InputProcessor
from moesaic.engine.request import Request
from moesaic.serve.api_error import (
    ApiError,
    engine_lost,
    engine_unavailable,
    impossible,
    timed_out,
    too_many,
)
from moesaic.serve.formats.detect import detect
from moesaic.serve.generation import Generation
from moesaic.serve.idle_unload import unload_when_idle
from moesaic.serve.insight.watcher import Watcher
from moesaic.serve.metrics import ServerMetrics
from moesaic.serve.request_record import RequestRecord
from moesaic.serve.server_settings import ServerSettings

Made = TypeVar("Made")
_PREPARED_AT_ONCE = 4  # prompts
_LEAST_RETRY_S, _MOST_RETRY_S = 1, 60
_LOADING = "the engine is loading its model: ask again in a moment"
_ENDING = "the server is ending and takes no more requests"


class Service:
    def __init__(self, llm: AsyncLLM, settings: ServerSettings) -> None:
        assert settings.model_names, "the command line gives one"
        self.llm, self.settings = llm, settings
        self.metrics = ServerMetrics()
        self.watcher = Watcher(llm)
        self.generations: dict[Generation, None] = {}  # in order of arrival
        self.formats = detect(
            self.processor.tokenizer.template_source,
            self.processor.family,
            settings.tool_format,
            settings.reasoning_format,
        )
        self._preparing = ThreadPoolExecutor(_PREPARED_AT_ONCE, "moesaic-prompts")
        self.draining = False
        self._idling: asyncio.Task[None] | None = None
        self.started_at = int(time.time())
        self.last_used = monotonic()  # by a generation

    @property
    def model_name(self) -> str:
        return self.settings.model_names[0]

    @property
    def processor(self) -> InputProcessor:
        return self.llm.input_processor

    def check_model(self, name: str | None) -> None:
        """A request may leave the model out, since there is one only."""
        names = self.settings.model_names
        if name is not None and name not in names:
            raise ApiError(
                404,
                f"there is no model {name!r} here; this server has {', '.join(names)}",
                param="model",
                code="model_not_found",
            )

    def refuse_unavailable(self) -> None:
        """Raise if no request can be answered now."""
        if self.draining:
            raise engine_unavailable(_ENDING, begun=False)
        failure = self.llm.state.failure
        if failure is not None:
            raise engine_lost(failure, begun=False)
        if not self.takes_requests:
            raise engine_unavailable(_LOADING, begun=False)

    @property
    def takes_requests(self) -> bool:
        """Whether the engine is there, or starts for the next request."""
        state = self.llm.state
        return state.ready or state.unloaded or state.reloading

    @property
    def engine_word(self) -> str:
        state = self.llm.state
        return "unloaded" if state.unloaded else "ready" if state.ready else "loading"

    def check_text(self, text: str) -> None:
        """Refuse what is certainly too long, before it becomes tokens."""
        self._check_length(self.processor.tokenizer.least_tokens(text), "at least ")

    def check_length(self, tokens: Sequence[int]) -> None:
        self._check_length(len(tokens))

    def _check_length(self, count: int, words: str = "") -> None:
        context, limit = self.processor.context, self.settings.max_prompt_tokens
        longest = context - 1 if limit is None else min(limit, context - 1)
        if count > longest:
            why = f"sequences of {context} tokens, at least one of them generated"
            if longest == limit:
                why = f"--max-prompt-tokens {limit}"
            raise impossible(
                f"the prompt has {words}{count} tokens; this server takes {longest} ({why}): "
                "shorten it",
                code="context_length_exceeded",
            )

    async def prepare(self, work: Callable[..., Made], *given: object) -> Made:
        """In a thread of its own kind: prompts that take long keep metrics and others from no
        thread. Nothing is begun for one that is cancelled while it waits."""
        limit = self.settings.timeout_s
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(limit) as timer:
                return await loop.run_in_executor(self._preparing, work, *given)
        except TimeoutError:
            if limit is None or not timer.expired():
                raise
            raise timed_out(limit) from None

    def refuse_too_many(self, more: int) -> None:
        """Raise if so many answers are more than may wait now."""
        there = sum(each.unfinished for each in self.generations)
        waiting = max(0, there - self.llm.sequences)
        most = self.llm.sequences + self.settings.max_queue
        if more > most:
            raise impossible(
                f"{more} answers were asked for at once; this server takes {most}: "
                f"{self.llm.sequences} are written at a time, and {self.settings.max_queue} may "
                "wait (--max-queue)",
                "n",
            )
        if there + more <= most:
            return
        raise too_many(
            f"{more} more {'answer was' if more == 1 else 'answers were'} refused: {waiting} wait, "
            f"and {self.settings.max_queue} may (--max-queue). Ask again later",
            self._retry_s(waiting),
        )

    def begin(self, requests: Sequence[Request], record: RequestRecord) -> Generation:
        """These are the answers of one call; refused where too many wait."""
        self.refuse_unavailable()
        self.refuse_too_many(len(requests))
        generation = Generation(self.llm, requests, record, self.metrics)
        self.generations[generation] = None
        limit, timer = self.settings.timeout_s, None
        if limit is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(limit, generation.stop, timed_out(limit))

        def ended() -> None:
            self.generations.pop(generation, None)
            self.last_used = monotonic()
            if timer is not None:
                timer.cancel()

        generation.on_end = ended
        return generation

    def end_all(self) -> None:
        """Cancel what still runs: its clients get an error."""
        for generation in list(self.generations):
            generation.stop(engine_unavailable(_ENDING))

    async def open(self) -> None:
        self._idling = asyncio.create_task(unload_when_idle(self))

    async def close(self) -> None:
        if self._idling is not None:
            self._idling.cancel()
        self._preparing.shutdown(wait=False, cancel_futures=True)
        await self.llm.close()

    def _retry_s(self, waiting: int) -> int:
        """Until about half of those that wait have begun."""
        mean_s = self.metrics.answer.mean or 0.0
        expected = mean_s * (waiting / 2 / max(1, self.llm.sequences))
        return min(_MOST_RETRY_S, max(_LEAST_RETRY_S, ceil(expected)))
