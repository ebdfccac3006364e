"""The caller's side of an engine in another process: a thread that sends requests, makes chunks of
the tokens that come back, and watches the process."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any, NamedTuple

import zmq

from moesaic.core.errors import EngineEnded, EngineFailed
from moesaic.engine.completion import Chunk
from moesaic.engine.gate_stats import NO_GATE
from moesaic.engine.input_processor import InputProcessor
from moesaic.engine.insight.capture_order import CaptureOrder
from moesaic.engine.insight.facts import Insight
from moesaic.engine.insight.settle import refuse
from moesaic.engine.loading import Progress
from moesaic.engine.model_use import closed_error, refuse_use_in_fork
from moesaic.engine.preparation import ModelText
from moesaic.engine.process import messages as m
from moesaic.engine.process.command_queue import CommandQueue
from moesaic.engine.process.engine_link import EngineLink
from moesaic.engine.process.engine_process import Launch
from moesaic.engine.process.faults import error_of, fault_of
from moesaic.engine.process.followed_constraint import FollowedConstraint
from moesaic.engine.process.questions import Questions
from moesaic.engine.request import Request
from moesaic.engine.run_stats import BlockStats, QueueStats, RunStats
from moesaic.engine.sampling.sampled import Alternative, Sampled
from moesaic.model_info.model_spec import ModelSpec

Callback = Callable[[Chunk | BaseException], None]  # called in the client's thread
_Started = SimpleQueue[m.Progress | Exception | None]  # None: it is ready

_TICK_MS = 500
_STATS_S = 0.5  # for an answer, before the newest statistics that arrived are returned
_NO_STATS = RunStats(0, 0, 0, 0, 0.0, None, 0, None, gate=NO_GATE)


class EngineState(NamedTuple):
    """Whether an engine takes requests now. Neither ready nor failed: it loads its model."""

    ready: bool
    failure: Exception | None = None  # why it has ended
    unloaded: bool = False  # to free memory, until a request starts it again
    reloading: bool = False  # for requests, which wait


@dataclass(slots=True, eq=False)
class _Pending:
    """A request that has not ended."""

    request: Request
    callback: Callback
    accepted: bool = False  # the engine's batcher has it


class EngineClient:
    """The methods are those of `BatcherThread`. Everything but `stats` and the beginnings of other
    methods happens in the client's thread."""

    def __init__(
        self, spec: ModelSpec, text: ModelText, launch: Launch, progress: Progress | None = None
    ) -> None:
        """Return when the model is loaded."""
        self._spec, self._text, self._launch = spec, text, launch
        self._process = os.getpid()
        self._processor: InputProcessor | None = None
        self.sequences = 0  # that the engine runs at once
        self._pending: dict[int, _Pending] = {}
        self._questions = Questions()
        self._restarts = launch.options.restarts
        self._stats = _NO_STATS
        self._fresh_stats = Event()
        self._drained = Event()
        self._lock = Lock()  # no command follows the end
        self._closed = False
        self._closing: BaseException | None = None  # an error that makes a recording void
        self._close_error: Exception | None = None
        self._failure: Exception | None = None  # why there is no engine
        self._link: EngineLink | None = None
        self._starting: _Started | None = None
        self._ended = False
        self._unloading = self._unloaded = self._reloading = False
        self._queue = CommandQueue()
        self._poller = zmq.Poller()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._thread = Thread(target=self._work, name="moesaic-engine-client", daemon=True)
        self._thread.start()
        try:
            self._start(progress)
        except BaseException:
            self._abort()
            raise

    @property
    def input_processor(self) -> InputProcessor:
        assert self._processor is not None, "made when the engine was ready"
        return self._processor

    @property
    def process_id(self) -> int | None:
        """Of the engine's process; None: it has ended."""
        link = self._link
        return None if link is None else link.process.pid

    @property
    def state(self) -> EngineState:
        link, failure = self._link, self._failure
        ready = failure is None and link is not None and link.ready
        unloaded = self._unloaded or self._unloading
        return EngineState(ready, failure, unloaded, self._reloading)

    @property
    def forked(self) -> bool:
        return os.getpid() != self._process

    def refuse_fork(self) -> None:
        refuse_use_in_fork(self._spec.name, self._process)

    def submit(self, request: Request, callback: Callback) -> None:
        self.refuse_fork()  # before the lock, which a thread may have held
        with self._lock:
            self._refuse_closed()
            if self._failure is not None:
                raise _again(self._failure)
            self._queue.put(lambda: self._accept(request, callback))

    def cancel(self, request: Request) -> None:
        """No event of it is reported any more."""
        with self._lock:
            if not self._closed:
                self._queue.put(lambda: self._cancel(request))

    def stats(self) -> RunStats:
        """The newest statistics that arrived, after asking for them."""
        if not (self._closed or self.forked or self._failure):
            fresh = self._fresh_stats
            if self._queue.put(self._ask_for_stats):
                fresh.wait(_STATS_S)
        return self._stats

    def insight(self) -> Future[Insight]:
        """What the engine knows of its last step; it notes those that follow for some seconds."""
        return self._ask(m.GetInsight)

    def capture(self, order: CaptureOrder) -> Future[bytes]:
        """The engine's next steps as a file."""
        return self._ask(lambda number: m.BeginCapture(number, order.kind, order.steps))

    def end_capture(self) -> None:
        """Wait for no more steps."""
        self._queue.put(lambda: self._send(m.EndCapture()))

    def _ask(self, message: Callable[[int], m.FromCaller]) -> Future[Any]:
        asked: Future[Any] = Future()

        def send() -> None:
            if self._link is not None and self._link.ready:
                self._link.send(message(self._questions.ask(asked)))
            else:
                failure = self._failure or EngineEnded("there is no engine that could be asked")
                refuse(asked, error_of(fault_of(failure)))

        self.refuse_fork()
        with self._lock:
            self._refuse_closed()
            self._queue.put(send)
        return asked

    def drain(self, timeout_s: float | None = None) -> bool:
        """Refuse further requests and wait for those that run; whether they have ended."""
        self._queue.put(lambda: self._send(m.Drain()))
        return self._drained.wait(timeout_s)

    def restart(self) -> None:
        """End the process, if it has not ended, and start another. Requests that run end with an
        error."""
        self.refuse_fork()
        with self._lock:
            self._refuse_closed()
        self._start(None)

    def unload(self) -> None:
        """Close the model and end the process, unless requests run. The next request starts it
        again and waits."""
        self._queue.put(self._unload)

    def close(self, error: BaseException | None = None) -> None:
        """Cancel running requests, close the model and end the process. Raises an error that no
        callback got."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._closing = error
                self._queue.put(self._shut_down)
        self._thread.join()
        failure, self._close_error = self._close_error, None
        if failure is not None:
            raise failure

    def _refuse_closed(self) -> None:
        if self._closed:
            raise closed_error(self._spec.name)

    def _start(self, progress: Progress | None) -> None:
        started: _Started = SimpleQueue()
        if not self._queue.put(partial(self._launch_again, started)):
            raise closed_error(self._spec.name)
        while (event := started.get()) is not None:
            if not isinstance(event, m.Progress):
                raise event
            if progress is not None:
                progress(event.done, event.total)

    def _abort(self) -> None:
        """Starting has failed, or was interrupted."""

        def end() -> None:
            if self._link is not None:
                self._link.process.kill()

        with self._lock:
            self._closed = True
            self._queue.put(end)
            self._queue.put(self._shut_down)
        self._thread.join()

    # The thread.

    def _work(self) -> None:
        self._poller.register(self._queue.fd, zmq.POLLIN)
        try:
            while not self._ended:
                self._turn()
        except Exception as error:
            with self._lock:
                self._closed = True
                self._close_error = error
        finally:
            with self._lock:  # also after an error here
                self._closed = True
            self._ended = True
            self._leave_link()
            self._queue.close()
            self._end_all(self._close_error)
            self._report(self._close_error or closed_error(self._spec.name))
            self._wake_stats()
            self._context.term()

    def _turn(self) -> None:
        link = self._link
        ready = dict(self._poller.poll(_TICK_MS if link is None else link.tick_ms))
        if self._queue.fd in ready:
            self._queue.run()
        if self._link is not link or link is None:
            return
        if link.socket in ready:
            self._receive(link)
        if link.process.ended:
            self._bury(link)
        else:
            has_work = bool(self._pending) or (self._closed and link.ready)
            link.watch(has_work, self._launch.options.stall_s)

    def _launch_again(self, started: _Started | None = None) -> None:
        if self._link is not None:
            self._link.process.kill()
            self._leave_link()
            self._fail_all(EngineEnded("the engine was restarted while the request was running"))
        if started is not None:
            self._report(EngineEnded("the engine was restarted once more while it was starting"))
            self._starting = started
        if self._ended:  # `_work` reports it
            return
        try:
            self._link = EngineLink(self._launch, self._context, self._poller)
        except Exception as error:
            if self._reloading:
                self._sleep_again(error)
            else:
                self._fail(error)
            return
        self._failure = None
        self._unloading = self._unloaded = False
        self._link.send(m.Hello())

    def _leave_link(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        self._questions.fail_all(EngineEnded("the engine has ended before it answered"))

    def _bury(self, link: EngineLink) -> None:
        """The process has ended. What it has sent before counts."""
        while link.socket.poll(50):
            self._receive(link)
            if self._link is not link:
                return
        if link.process.removed or (self._closed and link.closed):
            self._ended = True
            return
        if self._unloading:
            self._sleep()
            if self._pending:
                self._wake()
            return
        error = link.failure or EngineEnded(link.end_text())
        if self._reloading:
            self._sleep_again(error)
            return
        again = link.ready and self._restarts > 0 and not self._closed
        self._leave_link()
        if not again:
            self._fail(error)
            return
        self._restarts -= 1
        unaccepted = [each for each in self._pending.values() if not each.accepted]
        self._fail_all(error, keep=unaccepted)  # they cannot be the reason
        self._launch_again()

    def _unload(self) -> None:
        link = self._link
        if self._pending or self._closed or link is None or not link.ready:
            return
        link.send(m.GetStats())  # the last of this process
        link.send(m.Shutdown(None))
        link.ready, self._unloading = False, True  # what comes meanwhile waits for the next one

    def _sleep(self) -> None:
        """There is no engine until a request needs one."""
        self._leave_link()
        self._reloading = self._unloading = False
        self._unloaded = True
        self._close_error = None  # of a model that is not closed for good
        self._stats = replace(self._stats, kept_tokens=0, blocks=BlockStats(), queue=QueueStats())
        self._wake_stats()

    def _sleep_again(self, error: Exception) -> None:
        """It could not be loaded, perhaps for lack of memory: the next request tries again."""
        self._sleep()
        self._fail_all(error)
        self._report(error)

    def _wake(self) -> None:
        """Requests wait, and the engine was unloaded."""
        self._unloaded, self._reloading = False, True
        self._launch_again()

    def _fail(self, error: Exception) -> None:
        """There is no engine any more."""
        with self._lock:
            self._failure = error
            if self._closed:
                self._ended, self._close_error = True, error
        self._fail_all(error)
        self._drained.set()
        self._wake_stats()
        self._report(error)

    def _report(self, event: m.Progress | Exception | None) -> None:
        if self._starting is not None:
            self._starting.put(event)
            if not isinstance(event, m.Progress):
                self._starting = None

    def _shut_down(self) -> None:
        if self._link is None or not self._link.ready:
            self._ended = True  # an engine that loads is killed
        else:
            fault = None if self._closing is None else fault_of(self._closing)
            self._link.send(m.Shutdown(fault))

    # Requests.

    def _accept(self, request: Request, callback: Callback) -> None:
        if request.sampling.constraint is not None:  # it was checked
            request.sampling.constraint = FollowedConstraint()
        self._pending[request.id] = each = _Pending(request, callback)
        if self._failure is not None:
            self._end(each, _again(self._failure))
        elif self._link is not None and self._link.ready:
            self._submit(each)
        elif self._unloaded:
            self._wake()

    def _submit(self, each: _Pending) -> None:
        request = each.request
        self._send(
            m.Submit(
                id=request.id,
                prompt=list(request.prompt),
                sampling=m.SamplingFields.of(request.params, request.max_new_tokens),
                max_new_tokens=request.max_new_tokens,
                number=request.number,
                boundaries=request.boundaries,
                client=request.client,
                priority=request.priority,
            )
        )

    def _cancel(self, request: Request) -> None:
        each = self._pending.pop(request.id, None)
        if each is not None:
            if request.finish_reason is None:
                request.cancel()
            self._send(m.Cancel(request.id))

    def _end(self, each: _Pending, event: Chunk | BaseException) -> None:
        """Its last event."""
        self._pending.pop(each.request.id, None)
        if each.request.finish_reason is None:
            each.request.cancel()
        self._notify(each, event)

    def _fail_all(self, error: BaseException, keep: list[_Pending] | None = None) -> None:
        for each in list(self._pending.values()):
            if each not in (keep or ()):
                self._end(each, _again(error))

    def _end_all(self, error: BaseException | None) -> None:
        for each in list(self._pending.values()):
            self._end(each, Chunk("", None, "cancelled") if error is None else _again(error))

    def _notify(self, each: _Pending, event: Chunk | BaseException) -> None:
        try:
            each.callback(event)
        except RuntimeError:  # its event loop is closed
            self._cancel(each.request)

    # Messages.

    def _send(self, message: m.FromCaller) -> None:
        if self._link is not None and self._link.ready:
            self._link.send(message)

    def _receive(self, link: EngineLink) -> None:
        for message in link.received():
            self._handle(link, message)
            if self._link is not link:
                return

    def _handle(self, link: EngineLink, message: m.FromEngine) -> None:
        match message:
            case m.Step(updates):
                for update in updates:
                    self._update(update)
            case m.Accepted(number) if number in self._pending:
                self._pending[number].accepted = True
            case m.Refused(number, fault) if number in self._pending:
                self._end(self._pending[number], error_of(fault))
            case m.Stats(stats, answer):
                self._stats = stats
                if answer:
                    self._wake_stats()
            case _:
                self._handle_state(link, message)

    def _handle_state(self, link: EngineLink, message: m.FromEngine) -> None:
        match message:
            case m.Progress():
                self._report(message)
            case m.Ready():
                self._begin(link, message)
            case m.Failed(fault):
                link.failure = error_of(fault)
            case m.InsightFound(number, value, fault) | m.Captured(number, value, fault):
                error = None if fault is None else error_of(fault)
                self._questions.answer(number, value, error)
            case m.Drained():
                self._drained.set()
            case m.Closed(fault):
                link.closed = True
                self._close_error = None if fault is None else error_of(fault)

    def _begin(self, link: EngineLink, ready: m.Ready) -> None:
        link.ready, link.connection = True, ready.connection
        self._reloading = False
        self.sequences = ready.sequences
        if self._processor is None:
            self._processor = self._text.input_processor(self._spec, ready.context)
        else:  # ids go on
            self._processor = self._processor.with_context(ready.context)
        for each in list(self._pending.values()):
            self._submit(each)
        self._report(None)

    def _ask_for_stats(self) -> None:
        if self._link is not None and self._link.ready:
            self._link.send(m.GetStats())
        else:
            self._wake_stats()

    def _wake_stats(self) -> None:
        woken, self._fresh_stats = self._fresh_stats, Event()
        woken.set()

    def _update(self, update: m.TokenUpdate) -> None:
        each = self._pending.get(update.id)
        if each is None:  # it has ended here, and the engine did not know yet
            return
        request = each.request
        if update.token is None and update.finish is None:
            assert update.fault is not None, "what ended all requests"
            self._end(each, error_of(update.fault))
            return
        chunk = self._chunk(request, update)
        if chunk.finish_reason is not None:
            del self._pending[request.id]
            if update.finish is None:  # a stop string, or a text that cannot be made
                self._send(m.Cancel(request.id))
        self._notify(each, chunk)

    def _chunk(self, request: Request, update: m.TokenUpdate) -> Chunk:
        if update.token is None:
            return (
                request.cancel() if update.fault is None else request.fail(error_of(update.fault))
            )
        request.cached_tokens = update.cached_tokens
        request.differs = update.differs or request.differs
        constraint = request.sampling.constraint
        if isinstance(constraint, FollowedConstraint):
            constraint.note(update.finish)
        alternatives = tuple(Alternative(*each) for each in update.alternatives)
        try:
            chunk = request.accept(Sampled(update.token, update.logprob, alternatives))
        except Exception as error:
            return request.fail(error)
        if update.finish is not None and chunk.finish_reason is None:
            return request.fail(EngineFailed("the engine has ended a text that should go on"))
        return chunk


def _again(error: BaseException) -> BaseException:
    """The same for another request: a raised error keeps its traceback."""
    return error_of(fault_of(error))
