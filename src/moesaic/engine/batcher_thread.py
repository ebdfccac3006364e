"""The thread that drives a batcher: clients queue commands and get results through callbacks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Protocol

import torch

from moesaic.engine.completion import Chunk
from moesaic.engine.input_processor import InputProcessor
from moesaic.engine.insight.capture_order import CaptureOrder
from moesaic.engine.insight.collector import Collector
from moesaic.engine.insight.facts import Insight
from moesaic.engine.loading import LoadedModel
from moesaic.engine.request import Request
from moesaic.engine.run_stats import RunStats

Callback = Callable[[Chunk | BaseException], None]  # called in the batcher's thread
_Command = Callable[[], None]


class StepObserver(Protocol):
    """Called in the batcher's thread."""

    def before_step(self, requests: Iterable[Request]) -> None:
        """The requests that have not ended, in the order in which they were submitted."""

    def after_step(self) -> None:
        """All callbacks of a step have been called."""


class BatcherThread:
    """Commands run between steps, in order. The last event of every request is a chunk with a
    finish reason, or the error that ended it. A callback that raises `RuntimeError` (its event loop
    is closed) cancels the request."""

    def __init__(self, model: LoadedModel, observer: StepObserver | None = None) -> None:
        self._model, self._batcher = model, model.batcher
        self._observer = observer
        self._callbacks: dict[Request, Callback] = {}
        self._collector = Collector(model)
        self._commands: SimpleQueue[_Command | None] = SimpleQueue()  # None: shut down
        self._lock = threading.Lock()  # no command follows the shutdown
        self._closed = False
        self._unreported: BaseException | None = None  # an error while there were no requests
        self._thread = threading.Thread(target=self._work, name="moesaic-batcher", daemon=True)
        self._thread.start()

    @property
    def input_processor(self) -> InputProcessor:
        return self._model.input_processor

    @property
    def forked(self) -> bool:
        return self._model.forked

    def refuse_fork(self) -> None:
        self._model.refuse_fork()

    def submit(self, request: Request, callback: Callback) -> None:
        with self._lock:
            self._model.refuse_if(self._closed)
            self._commands.put(lambda: self._accept(request, callback))

    def cancel(self, request: Request) -> None:
        """No event of it is reported any more."""
        with self._lock:
            if not self._closed:
                self._commands.put(lambda: self._drop(request))

    def stats(self) -> RunStats:
        return self._batcher.stats()

    def insight(self) -> Future[Insight]:
        """What is known of the last step; those that follow are noted for some seconds."""
        found: Future[Insight] = Future()
        self._ask(lambda: self._collector.collect(found))
        return found

    def capture(self, order: CaptureOrder) -> Future[bytes]:
        """The next steps as a file."""
        captured: Future[bytes] = Future()
        self._ask(lambda: self._batcher.captures.order(order, captured))
        return captured

    def end_capture(self) -> None:
        """Wait for no more steps."""
        self._ask(self._batcher.captures.end)

    def _ask(self, command: _Command) -> None:
        with self._lock:
            self._model.refuse_if(self._closed)
            self._commands.put(command)

    def close(self, error: BaseException | None = None) -> None:
        """Cancel running requests, join the thread and close the model. Raises an error that no
        callback got. `error` makes a recording void, see `LoadedModel.close`."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._commands.put(None)
        self._thread.join()
        self._collector.close()
        unreported, self._unreported = self._unreported, None
        try:
            if unreported is not None:
                raise unreported
        finally:
            self._model.close(error)

    def _work(self) -> None:
        event: Chunk | BaseException = Chunk("", None, "cancelled")
        try:
            torch.set_num_threads(self._model.threads)  # of this thread only
            while self._advance():
                pass
            self._batcher.captures.fail()
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
            if self._observer is not None:
                self._observer.before_step(self._callbacks)
            for request, chunk in self._batcher.step():
                self._notify(request, chunk)
        except BaseException as error:
            self._batcher.cancel_all()
            self._notify_all(error)
        else:
            self._step_ended()
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
        try:
            self._batcher.submit(request)
        except Exception as error:  # the batcher refuses this one
            self._notify(request, error)
            self._step_ended()

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
        self._step_ended()

    def _step_ended(self) -> None:
        if self._observer is not None:
            self._observer.after_step()
