"""`AsyncLLM`: many clients of one event loop share a model and its batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Unpack

from moesaic.engine.batcher_thread import BatcherThread
from moesaic.engine.completion import Chunk, Completion
from moesaic.engine.engine_options import EngineOptions, list_options
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.input_processor import Params, Prompt, Prompts
from moesaic.engine.loading import Progress, load, settings_from
from moesaic.engine.preparation import PathLike
from moesaic.engine.request import Request
from moesaic.engine.run_stats import RunStats
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.models.text.chat_messages import Messages
from moesaic.models.text.tokenizer import Tokenizer


class AsyncLLM:
    """An asynchronous context manager with the arguments of `LLM`. Loading blocks, so load before
    serving. Cancelling a task, or closing a stream, cancels its requests."""

    @list_options
    def __init__(
        self,
        model: PathLike | None = None,
        settings: EngineSettings | None = None,
        *,
        system: str | None = None,
        record: PathLike | None = None,
        progress: Progress | None = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        """Load a model as `LLM` does: options come before what `settings` and `system` say."""
        chosen = settings_from(settings, system, options)
        self.model = load(model, chosen, record, progress)
        self._engine = BatcherThread(self.model)

    async def generate(self, prompts: Prompts, params: Params = None) -> list[Completion]:
        return await self._finish(self._engine.input_processor.requests(prompts, params))

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> AsyncIterator[Chunk]:
        return self._chunks([self._engine.input_processor.request(prompt, params)])

    async def chat(self, messages: Messages, params: SamplingParams | None = None) -> Completion:
        (answer,) = await self._finish(
            [self._engine.input_processor.conversation(messages, params)]
        )
        return answer

    def stream_chat(
        self, messages: Messages, params: SamplingParams | None = None
    ) -> AsyncIterator[Chunk]:
        return self._chunks([self._engine.input_processor.conversation(messages, params)])

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own: `encode`, `decode`, `apply_chat_template`."""
        return self._engine.input_processor.tokenizer

    def stats(self) -> RunStats:
        return self._engine.stats()

    async def close(self) -> None:
        """Cancel running requests, stop the threads, write the recording."""
        await self._close(None)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self._close(error)

    async def _close(self, error: BaseException | None) -> None:
        if not self._engine.forked:
            await asyncio.to_thread(self._engine.close, error)

    async def _finish(self, requests: Sequence[Request]) -> list[Completion]:
        async for _ in self._chunks(requests):
            pass
        return [request.completion() for request in requests]

    async def _chunks(self, requests: Sequence[Request]) -> AsyncIterator[Chunk]:
        """Chunks of all requests in order of arrival, until the last request has finished."""
        self._engine.refuse_fork()  # before the engine's lock, which a thread may have held
        events: asyncio.Queue[Chunk | BaseException] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def callback(event: Chunk | BaseException) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        unfinished = len(requests)
        try:
            for request in requests:
                self._engine.submit(request, callback)
            while unfinished:
                event = await events.get()
                if isinstance(event, BaseException):
                    raise event
                yield event
                unfinished -= event.finish_reason is not None
            for request in requests:
                if request.failure is not None:
                    raise request.failure
        finally:
            for request in requests:
                self._engine.cancel(request)
