"""`LLM`: a model directory in, text out. Not thread-safe; `AsyncLLM` serves many clients."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

from moesaic.engine.completion import Chunk, Completion
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.input_processor import Params, Prompt, Prompts
from moesaic.engine.loading import Progress, load, settings_from
from moesaic.engine.preparation import PathLike
from moesaic.engine.request import Request
from moesaic.engine.run_stats import RunStats
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.models.chat_messages import Messages
from moesaic.models.tokenizer import Tokenizer


class LLM:
    """A context manager; `close` stops its threads, and so does forgetting it. `model` has what it
    runs on: the memory plan, the tokenizer, the runner."""

    def __init__(
        self,
        model: PathLike | None = None,
        settings: EngineSettings | None = None,
        *,
        system: str | None = None,
        record: PathLike | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> None:
        """`model` is a directory in Hugging Face layout; without it, the bundled one is loaded.
        `options` are fields of the settings (`accelerator="emulated", cache_ratio=0.25`) or of
        their policies (`cache="mrs:alpha=0.2"`), `system` a named set of policies. `record` is the
        file for a routing trace, written when the model is closed; `progress` is called with the
        number of experts loaded and the total."""
        chosen = settings_from(settings, system, options)
        self.model = load(model, chosen, record, progress)
        weakref.finalize(self, self.model.close)
        self._streams: dict[Request, deque[Chunk]] = {}

    def generate(self, prompts: Prompts, params: Params = None) -> list[Completion]:
        """All prompts in batches of at most `max_sequences`; the completions in their order, `n`
        for each prompt. A prompt is text or a list of token ids; `params` are for all, or one for
        each."""
        return self._finish(self.model.input_processor.requests(prompts, params))

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Chunk]:
        """The completion chunk by chunk. Closing the iterator cancels the request."""
        return self._chunks(self.model.input_processor.request(prompt, params))

    def chat(self, messages: Messages, params: SamplingParams | None = None) -> Completion:
        """The answer to a conversation: messages with role and content, the latest last."""
        (answer,) = self._finish([self.model.input_processor.conversation(messages, params)])
        return answer

    def stream_chat(
        self, messages: Messages, params: SamplingParams | None = None
    ) -> Iterator[Chunk]:
        return self._chunks(self.model.input_processor.conversation(messages, params))

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own: `encode`, `decode`, `apply_chat_template`."""
        return self.model.input_processor.tokenizer

    def stats(self) -> RunStats:
        return self.model.batcher.stats()

    def close(self) -> None:
        """End streams, stop the threads, write the recording."""
        self.model.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.model.close(error)

    def _finish(self, requests: Sequence[Request]) -> list[Completion]:
        self.model.refuse_if(self.model.closed)
        batcher = self.model.batcher
        for request in requests:
            batcher.submit(request)
        try:
            while any(request.finish_reason is None for request in requests):
                self._step()
        finally:
            for request in requests:
                batcher.cancel(request)
            batcher.settle()  # of streams that go on
        for request in requests:
            if request.failure is not None:
                raise request.failure
        return [request.completion() for request in requests]

    def _chunks(self, request: Request) -> Iterator[Chunk]:
        """Other streams may step the batcher in between: chunks of this request are queued. While
        the caller has a chunk, no step is under way: what callers do with a GPU is theirs."""
        self.model.refuse_if(self.model.closed)
        arrived = self._streams[request] = deque()
        self.model.batcher.submit(request)
        try:
            while request.finish_reason is None or arrived:
                if arrived:
                    yield arrived.popleft()
                else:
                    self._step(ahead=False)
            if request.failure is not None:
                raise request.failure
        finally:
            del self._streams[request]
            self.model.batcher.cancel(request)

    def _step(self, ahead: bool = True) -> None:
        for request, chunk in self.model.batcher.step(ahead):
            if request in self._streams:
                self._streams[request].append(chunk)
