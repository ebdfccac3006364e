"""`LLM`: a model directory in, text out. Not thread-safe but for `close`; `AsyncLLM` serves many
clients."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from threading import RLock
from types import TracebackType
from typing import Unpack

from moesaic.engine.completion import Chunk, Completion
from moesaic.engine.engine_options import EngineOptions, list_options
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.input_processor import Params, Prompt, Prompts
from moesaic.engine.loading import Progress, load, settings_from
from moesaic.engine.preparation import PathLike
from moesaic.engine.request import Request, Sender
from moesaic.engine.run_stats import RunStats
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.models.text.chat_messages import Messages
from moesaic.models.text.tokenizer import Tokenizer


class LLM:
    """A context manager; `close` stops its threads, and so does forgetting it. `model` has what it
    runs on: the memory plan, the tokenizer, the runner."""

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
        """`model` is a directory in Hugging Face layout; without it, the bundled one is loaded.
        Options are fields of the settings (`accelerator="emulated", cache_ratio=0.25`) or of their
        policies (`cache="mrs:alpha=0.2"`), and come before what `settings` and `system`, a named
        set of policies, say. `record` is the file for a routing trace, written when the model is
        closed; `progress` is called with the number of experts loaded and the total."""
        chosen = settings_from(settings, system, options)
        self.model = load(model, chosen, record, progress)
        weakref.finalize(self, self.model.close)
        self._streams: dict[Request, deque[Chunk]] = {}
        self._lock = RLock()  # of the batcher: `close` may be called by another thread
        self._closing = False

    def generate(
        self, prompts: Prompts, params: Params = None, *, client: str = "", priority: int = 0
    ) -> list[Completion]:
        """All prompts in batches of at most `max_sequences`; the completions in their order, `n`
        for each prompt. A prompt is text or a list of token ids; `params` are for all, or one for
        each."""
        return self._finish(
            self.model.input_processor.requests(prompts, params, Sender(client, priority))
        )

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        client: str = "",
        priority: int = 0,
    ) -> Iterator[Chunk]:
        """The completion chunk by chunk. Closing the iterator cancels the request."""
        return self._chunks(
            self.model.input_processor.request(prompt, params, Sender(client, priority))
        )

    def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        client: str = "",
        priority: int = 0,
    ) -> Completion:
        """The answer to a conversation: messages with role and content, the latest last."""
        (answer,) = self._finish(
            [self.model.input_processor.conversation(messages, params, Sender(client, priority))]
        )
        return answer

    def stream_chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        client: str = "",
        priority: int = 0,
    ) -> Iterator[Chunk]:
        return self._chunks(
            self.model.input_processor.conversation(messages, params, Sender(client, priority))
        )

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own: `encode`, `decode`, `apply_chat_template`."""
        return self.model.input_processor.tokenizer

    def stats(self) -> RunStats:
        return self.model.batcher.stats()

    def close(self) -> None:
        """End streams, stop the threads, write the recording. Another thread may call it: it waits
        for the step that is being computed. Streams that are being read end with a chunk whose
        finish reason is `cancelled`."""
        self._close(None)

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._close(error)

    def _close(self, error: BaseException | None) -> None:
        if self.model.forked:  # whose lock may be held by a thread that it has not got
            return
        self._closing = True  # before the lock, which a thread that takes many steps seldom leaves
        with self._lock:
            self.model.close(error)

    def _submit(self, requests: Sequence[Request]) -> None:
        self.model.refuse_fork()  # before the lock, see `_close`
        with self._lock:
            self.model.refuse_if(self._closing or self.model.closed)
            try:
                for request in requests:
                    self.model.batcher.submit(request)
            except Exception:  # one is refused: none runs
                self._cancel(requests)
                raise

    def _cancel(self, requests: Sequence[Request]) -> None:
        """Those that have not ended. Afterwards no step is under way."""
        if self.model.forked:
            return
        with self._lock:
            for request in requests:
                self.model.batcher.cancel(request)
            self.model.batcher.settle()

    def _finish(self, requests: Sequence[Request]) -> list[Completion]:
        self._submit(requests)
        try:
            while any(request.finish_reason is None for request in requests):
                self._step()
        finally:
            self._cancel(requests)  # settles the steps of streams that go on, too
        for request in requests:
            if request.failure is not None:
                raise request.failure
        return [request.completion() for request in requests]

    def _chunks(self, request: Request) -> Iterator[Chunk]:
        """Other streams may step the batcher in between: chunks of this request are queued. While
        the caller has a chunk, no step is under way: what callers do with a GPU is theirs."""
        self._submit([request])
        arrived = self._streams[request] = deque()
        ended = False
        try:
            while request.finish_reason is None or arrived:
                if arrived:
                    ended = arrived[0].finish_reason is not None
                    yield arrived.popleft()
                else:
                    self._step(ahead=False)
            if request.failure is not None:
                raise request.failure
            if not ended:  # by `close`, or by an interruption of another stream's step
                yield Chunk("", None, "cancelled")
        finally:
            del self._streams[request]
            self._cancel([request])

    def _step(self, ahead: bool = True) -> None:
        self.model.refuse_fork()  # a stream may have begun before the fork
        with self._lock:
            if self._closing:
                self.model.batcher.cancel_all()
                return
            for request, chunk in self.model.batcher.step(ahead):
                if request in self._streams:
                    self._streams[request].append(chunk)
