"""`AsyncLLM`: many clients of one event loop share a model and its batches."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from queue import SimpleQueue
from types import TracebackType
from typing import Unpack

import torch

from moesaic.engine.completion import Chunk, Completion
from moesaic.engine.engine_options import EngineOptions, list_options
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.input_processor import Params, Prompt, Prompts
from moesaic.engine.loading import LoadedModel, Progress, load, settings_from
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
        self._worker = Worker(self.model)

    async def generate(self, prompts: Prompts, params: Params = None) -> list[Completion]:
        return await self._finish(self.model.input_processor.requests(prompts, params))

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> AsyncIterator[Chunk]:
        return self._chunks([self.model.input_processor.request(prompt, params)])

    async def chat(self, messages: Messages, params: SamplingParams | None = None) -> Completion:
        (answer,) = await self._finish([self.model.input_processor.conversation(messages, params)])
        return answer

    def stream_chat(
        self, messages: Messages, params: SamplingParams | None = None
    ) -> AsyncIterator[Chunk]:
        return self._chunks([self.model.input_processor.conversation(messages, params)])

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own: `encode`, `decode`, `apply_chat_template`."""
        return self.model.input_processor.tokenizer

    def stats(self) -> RunStats:
        return self.model.batcher.stats()

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
        try:
            if not self.model.forked:
                await asyncio.to_thread(self._worker.close)
        finally:
            self.model.close(error)

    async def _finish(self, requests: Sequence[Request]) -> list[Completion]:
        async for _ in self._chunks(requests):
            pass
        return [request.completion() for request in requests]

    async def _chunks(self, requests: Sequence[Request]) -> AsyncIterator[Chunk]:
        """Chunks of all requests in order of arrival, until the last request has finished."""
        self.model.refuse_fork()  # before the worker's lock, which a thread may have held
        events: asyncio.Queue[Chunk | BaseException] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def callback(event: Chunk | BaseException) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        unfinished = len(requests)
        try:
            for request in requests:
                self._worker.submit(request, callback)
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
                self._worker.cancel(request)


# A thread that drives a batcher: clients queue commands and get results through callbacks.

Callback = Callable[[Chunk | BaseException], None]  # called in the worker's thread
_Command = Callable[[], None]


class Worker:
    """Commands run between steps, in order. The last event of every request is a chunk with a
    finish reason, or the error that ended it. A callback that raises `RuntimeError` (its event loop
    is closed) cancels the request."""

    def __init__(self, model: LoadedModel) -> None:
        self._model, self._batcher = model, model.batcher
        self._callbacks: dict[Request, Callback] = {}
        self._commands: SimpleQueue[_Command | None] = SimpleQueue()  # None: shut down
        self._lock = threading.Lock()  # no command follows the shutdown
        self._closed = False
        self._unreported: BaseException | None = None  # an error while there were no requests
        self._thread = threading.Thread(target=self._work, name="moesaic-batcher", daemon=True)
        self._thread.start()

    def submit(self, request: Request, callback: Callback) -> None:
        with self._lock:
            self._model.refuse_if(self._closed)
            self._commands.put(lambda: self._accept(request, callback))

    def cancel(self, request: Request) -> None:
        """No event of it is reported any more."""
        with self._lock:
            if not self._closed:
                self._commands.put(lambda: self._drop(request))

    def close(self) -> None:
        """Cancels running requests and joins the thread. Raises an error that no callback got."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._commands.put(None)
        self._thread.join()
        unreported, self._unreported = self._unreported, None
        if unreported is not None:
            raise unreported

    def _work(self) -> None:
        event: Chunk | BaseException = Chunk("", None, "cancelled")
        try:
            torch.set_num_threads(self._model.threads)  # of this thread only
            while self._advance():
                pass
            self._batcher.cancel_all()
        except BaseException as error:
            event = error
        with self._lock:
            self._closed = True
        while not self._commands.empty():  # after an error: commands still queued
            if (command := self._commands.get()) is not None:
                command()
        self._notify_all(event)

    def _advance(self) -> bool:
        """Commands, then a step. An error ends all requests, not the thread. A command can fail:
        cancelling a request writes its recorded document. False: shut down."""
        try:
            if not self._process_commands():
                return False
            for request, chunk in self._batcher.step():
                self._notify(request, chunk)
        except BaseException as error:
            self._batcher.cancel_all()
            self._notify_all(error)
        return True

    def _process_commands(self) -> bool:
        """Blocks while there are no requests. False: shut down."""
        while self._batcher.idle or not self._commands.empty():
            command = self._commands.get()
            if command is None:
                return False
            command()
        return True

    def _accept(self, request: Request, callback: Callback) -> None:
        self._callbacks[request] = callback
        self._batcher.submit(request)

    def _drop(self, request: Request) -> None:
        self._callbacks.pop(request, None)
        self._batcher.cancel(request)

    def _notify(self, request: Request, event: Chunk | BaseException) -> None:
        callback = self._callbacks.get(request)
        if callback is None:
            return
        if isinstance(event, BaseException) or event.finish_reason is not None:
            del self._callbacks[request]
        try:
            callback(event)
        except RuntimeError:
            self._drop(request)

    def _notify_all(self, event: Chunk | BaseException) -> None:
        if isinstance(event, BaseException) and not self._callbacks:
            self._unreported = event
        for request in list(self._callbacks):
            self._notify(request, event)
