"""`AsyncLLM`: many clients of one event loop share a model and its batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from functools import partial
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Unpack

from moesaic.core.errors import ImpossibleSetting, MissingExtra
from moesaic.engine.batcher_thread import BatcherThread, Callback
from moesaic.engine.completion import Chunk, Completion
from moesaic.engine.engine_options import EngineOptions, list_options
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.fetching import local_model
from moesaic.engine.input_processor import InputProcessor, Params, Prompt, Prompts
from moesaic.engine.insight.capture_order import CaptureOrder
from moesaic.engine.insight.facts import Insight
from moesaic.engine.loading import LoadedModel, Progress, load, settings_from
from moesaic.engine.loop_mailbox import LoopMailbox
from moesaic.engine.preparation import ModelText, PathLike
from moesaic.engine.request import Request, Sender, Update
from moesaic.engine.run_stats import RunStats
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.models.open_model import open_model
from moesaic.models.text.chat_messages import Messages
from moesaic.models.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from moesaic.engine.process.client import EngineClient, EngineState
    from moesaic.engine.process.process_options import ProcessOptions


class Engine(Protocol):
    """What runs requests: a thread of this process, or another process."""

    @property
    def input_processor(self) -> InputProcessor: ...

    @property
    def forked(self) -> bool: ...

    def refuse_fork(self) -> None: ...

    def submit(self, request: Request, callback: Callback) -> None: ...

    def cancel(self, request: Request) -> None: ...

    def stats(self) -> RunStats: ...

    def insight(self) -> Future[Insight]: ...

    def capture(self, order: CaptureOrder) -> Future[bytes]: ...

    def end_capture(self) -> None: ...

    def close(self, error: BaseException | None) -> None: ...


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
        process: bool | ProcessOptions = False,
        **options: Unpack[EngineOptions],
    ) -> None:
        """Load a model as `LLM` does: options come before what `settings` and `system` say.
        `process` runs the engine in a process of its own, whose end is an error and not the end of
        this process; `ProcessOptions` say how that process is supervised."""
        chosen = settings_from(settings, system, options)
        self._model: LoadedModel | None = None
        self._client: EngineClient | None = None
        self._mailbox: LoopMailbox | None = None  # of the loop that was used last
        self._engine: Engine
        if process is False:
            self._model = load(model, chosen, record, progress)
            self._engine = BatcherThread(self._model)
        else:
            self._engine = self._client = _start(model, chosen, record, progress, process)

    @property
    def model(self) -> LoadedModel:
        """What it runs on: the memory plan, the runner. Refused where another process has it."""
        if self._model is None:
            raise ImpossibleSetting("the model is in the engine's process: leave out `process`")
        return self._model

    async def generate(
        self, prompts: Prompts, params: Params = None, *, client: str = "", priority: int = 0
    ) -> list[Completion]:
        return await self._finish(
            self._engine.input_processor.requests(prompts, params, Sender(client, priority))
        )

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        client: str = "",
        priority: int = 0,
    ) -> AsyncIterator[Chunk]:
        return self._chunks(
            [self._engine.input_processor.request(prompt, params, Sender(client, priority))]
        )

    async def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        client: str = "",
        priority: int = 0,
    ) -> Completion:
        (answer,) = await self._finish(
            [self._engine.input_processor.conversation(messages, params, Sender(client, priority))]
        )
        return answer

    def stream_chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        client: str = "",
        priority: int = 0,
    ) -> AsyncIterator[Chunk]:
        return self._chunks(
            [self._engine.input_processor.conversation(messages, params, Sender(client, priority))]
        )

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own: `encode`, `decode`, `apply_chat_template`."""
        return self._engine.input_processor.tokenizer

    @property
    def input_processor(self) -> InputProcessor:
        """Makes requests for `follow`."""
        return self._engine.input_processor

    @property
    def sequences(self) -> int:
        """How many requests run at once; more wait."""
        if self._client is not None:
            return self._client.sequences
        return self.model.plan.capacity.sequences

    @property
    def state(self) -> EngineState:
        """Whether the engine's process takes requests. Refused where there is none."""
        if self._client is None:
            raise ImpossibleSetting("the engine runs in this process: give process=True")
        return self._client.state

    def stats(self) -> RunStats:
        """In a process of its own: asked of the engine, or the last that it has sent."""
        return self._engine.stats()

    async def insight(self) -> Insight:
        """What the engine knows of its last step: which expert ran where, and what was known when
        that was decided. It notes the steps that follow for some seconds, so the first answer after
        a pause may have no step."""
        return await asyncio.wrap_future(self._engine.insight())

    async def capture(self, order: CaptureOrder, wait_s: float) -> bytes:
        """The next steps as a file: with fewer of them after so many seconds. One at a time."""
        captured = asyncio.wrap_future(self._engine.capture(order))
        try:
            done, _ = await asyncio.wait({captured}, timeout=wait_s)
            if not done:
                self._engine.end_capture()
            return await captured
        except asyncio.CancelledError:
            self._engine.end_capture()
            raise

    async def restart(self) -> None:
        """Start the engine's process again. Requests that run end with an error."""
        if self._client is None:
            raise ImpossibleSetting(
                "the engine runs in this process and cannot be restarted alone: give process=True"
            )
        await asyncio.to_thread(self._client.restart)

    def unload(self) -> None:
        """End the engine's process to free its memory, unless requests run. `state` says when it
        has ended; the next request starts it again and waits."""
        if self._client is None:
            raise ImpossibleSetting(
                "the engine runs in this process and cannot be unloaded alone: give process=True"
            )
        self._client.unload()

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
        async with aclosing(self.follow(requests)) as updates:
            async for update in updates:
                yield update.chunk

    async def follow(self, requests: Sequence[Request]) -> AsyncGenerator[Update, None]:
        """Run these requests, made by `input_processor`: chunks of all of them in order of arrival,
        until the last has finished. Closing it cancels those that run."""
        self._engine.refuse_fork()  # before the engine's lock, which a thread may have held
        events: asyncio.Queue[tuple[Request, Chunk | BaseException]] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        if self._mailbox is None or self._mailbox.loop is not loop:
            self._mailbox = LoopMailbox(loop)
        mailbox = self._mailbox

        def callback(request: Request, event: Chunk | BaseException) -> None:
            mailbox.put(events, (request, event))

        unfinished = len(requests)
        try:
            for request in requests:
                self._engine.submit(request, partial(callback, request))
            while unfinished:
                request, event = await events.get()
                if isinstance(event, BaseException):
                    raise event
                yield Update(request, event)
                unfinished -= event.finish_reason is not None
            for request in requests:
                if request.failure is not None:
                    raise request.failure
        finally:
            for request in requests:
                self._engine.cancel(request)


def _start(
    model: PathLike | None,
    settings: EngineSettings,
    record: PathLike | None,
    progress: Progress | None,
    process: bool | ProcessOptions,
) -> EngineClient:
    """The model's texts are this process's, its weights the other's."""
    if find_spec("zmq") is None or find_spec("msgspec") is None:
        raise MissingExtra("an engine in a process of its own", "engine")
    from moesaic.engine.process.client import EngineClient
    from moesaic.engine.process.engine_process import Launch
    from moesaic.engine.process.process_options import ProcessOptions

    supervision = process if isinstance(process, ProcessOptions) else ProcessOptions()
    folder = local_model(model, settings)
    spec = open_model(folder).architecture.spec
    text = ModelText.read(folder, spec)
    launch = Launch(folder, settings, text.eos_ids, record, supervision)
    return EngineClient(spec, text, launch, progress)
