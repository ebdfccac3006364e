"""The engine's side of the socket: a thread that reads what callers send and sends what steps
bring. The batcher's thread leaves a step's results with it and goes on."""

from __future__ import annotations

import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any

import msgspec
import zmq

from moesaic.core.errors import EngineFailed, ImpossibleSetting
from moesaic.engine.batcher_thread import BatcherThread
from moesaic.engine.completion import Chunk
from moesaic.engine.insight.capture_order import CaptureOrder
from moesaic.engine.insight.facts import Insight
from moesaic.engine.process import messages as m
from moesaic.engine.process.admission import Admission
from moesaic.engine.process.caller import Caller, Unsent
from moesaic.engine.process.command_queue import CommandQueue
from moesaic.engine.process.engine_process import SOCKET
from moesaic.engine.process.faults import Fault, error_of, fault_of
from moesaic.engine.process.process_options import ProcessOptions
from moesaic.engine.process.step_record import StepRecord
from moesaic.engine.request import Request
from moesaic.engine.run_stats import RunStats
from moesaic.engine.sampling.sampled import Sampled

_TICK_MS = 500
_STATS_S = 1.0
_LOOKED_AT = 256  # requests, for those of a step
_AT_ONCE = 64  # messages that are read before results are sent again
_LINGER_MS = 5000  # for the last messages, where the caller reads slowly


@dataclass(frozen=True, slots=True)
class Serving:
    """What requests are put to, once the model is loaded."""

    batcher: BatcherThread
    admission: Admission
    context: int
    sequences: int


class EngineServer:
    """`begin` starts it, before the model is loaded, and `watch_parent` follows when the launch has
    been read. Then `progress`, and `serve` or `fail`. `end` stops it when everything was sent."""

    def __init__(self, folder: Path, record: StepRecord) -> None:
        self._folder, self._record = folder, record
        self._queue = CommandQueue()
        self._callers: dict[bytes, Caller] = {}
        self._connections = 0
        self._outcome: m.Failed | None = None
        self._engine: Serving | None = None
        self._options = ProcessOptions()
        self._poller = zmq.Poller()
        self._grammars = ThreadPoolExecutor(1, "moesaic-grammars")  # compiling may take seconds
        self._results: list[tuple[Caller, m.TokenUpdate]] = []  # of the step that is computed
        self._named: dict[Request, tuple[int, int]] = {}  # connection and id
        self._waits_for_drain: list[Caller] = []
        self._draining = False
        self._ending = False
        self._stats_at = 0.0
        self.greeted = Event()  # a caller has the outcome of loading
        self.shut_down = Event()  # a caller has asked for it
        self.shutdown_error: BaseException | None = None
        self._thread = Thread(target=self._work, name="moesaic-messages", daemon=True)

    # Called by other threads.

    def begin(self) -> None:
        self._thread.start()

    def watch_parent(self, options: ProcessOptions) -> None:
        """The parent keeps the standard input open, and writes no more to it."""

        def watch() -> None:
            self._options = options
            self._poller.register(sys.stdin.fileno(), zmq.POLLIN)

        self._queue.put(watch)

    def progress(self, done: int, total: int) -> None:
        self._queue.put(lambda: self._broadcast(m.Progress(done, total)))

    def fail(self, error: BaseException) -> None:
        fault = fault_of(error)

        def announce() -> None:
            self._outcome = m.Failed(fault)
            for caller in list(self._callers.values()):
                self._greet(caller)

        self._queue.put(announce)

    def serve(self, serving: Serving) -> None:
        def announce() -> None:
            self._engine = serving
            for caller in list(self._callers.values()):
                self._greet(caller)

        self._queue.put(announce)

    def closed(self, fault: Fault | None) -> None:
        self._queue.put(lambda: self._broadcast(m.Closed(fault)))

    def end(self) -> None:
        def stop() -> None:
            self._ending = True

        self._queue.put(stop)
        self._thread.join()

    # Called by the batcher's thread.

    def before_step(self, requests: Iterable[Request]) -> None:
        sequences = 0 if self._engine is None else self._engine.sequences
        first = list(islice(requests, _LOOKED_AT))
        running = [each for each in first if each.slot is not None]
        waiting = [each for each in first if each.slot is None]  # some of them are let in
        step = [*running, *waiting[: max(0, sequences - len(running))]]
        named = (self._named.get(request) for request in step)
        self._record.begin([each for each in named if each is not None])

    def after_step(self) -> None:
        self._record.end()
        if self._results:
            self._queue.put(partial(self._deliver, self._results))
            self._results = []

    def _callback(
        self, caller: Caller, number: int, request: Request
    ) -> Callable[[Chunk | BaseException], None]:
        def callback(event: Chunk | BaseException) -> None:
            self._results.append((caller, _update(number, request, event)))

        return callback

    # The thread.

    def _work(self) -> None:
        try:
            with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
                socket.set(zmq.SNDHWM, 0)  # callers' credit is the limit
                socket.set(zmq.RCVHWM, 0)
                socket.set(zmq.LINGER, _LINGER_MS)
                socket.set(zmq.ROUTER_MANDATORY, 1)  # a caller who has gone is an error
                socket.bind(f"ipc://{self._folder / SOCKET}")
                self._socket = socket
                self._serve(socket)
            self._grammars.shutdown(cancel_futures=True)
        except BaseException:
            traceback.print_exc()  # into the log
            os._exit(1)

    def _serve(self, socket: zmq.Socket[bytes]) -> None:
        parent = sys.stdin.fileno()
        for each in (socket, self._queue.fd):
            self._poller.register(each, zmq.POLLIN)
        while not self._ending:
            ready = dict(self._poller.poll(_TICK_MS))
            if parent in ready and not os.read(parent, 1):  # the parent has ended
                shutil.rmtree(self._folder, ignore_errors=True)
                os._exit(0)
            if self._queue.fd in ready:
                self._queue.run()
            if socket in ready:
                self._receive(socket)
            self._tick()

    def _receive(self, socket: zmq.Socket[bytes]) -> None:
        for _ in range(_AT_ONCE):
            try:
                identity, *_, data = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            caller = self._caller(identity)
            try:
                message = m.decode_from_caller(data)
            except msgspec.MsgspecError as error:
                self._send(caller, m.Refused(-1, fault_of(error)))
                continue
            self._handle(caller, message)

    def _caller(self, identity: bytes) -> Caller:
        if identity not in self._callers:
            self._connections += 1
            self._callers[identity] = Caller(identity, self._connections)
        return self._callers[identity]

    def _handle(self, caller: Caller, message: m.FromCaller) -> None:
        match message:
            case m.Hello():
                self._greet(caller)
            case m.Submit():
                self._submit(caller, message)
            case m.Cancel(number):
                self._cancel(caller, number)
            case m.Read(count):
                caller.has_read(count)
                self._flush(caller)
            case m.GetStats():
                self._send_stats(caller, answer=True)
            case m.GetInsight(number):
                self._answer(
                    caller, partial(self._found, caller, number), None, BatcherThread.insight
                )
            case m.BeginCapture(number, kind, steps):
                order = CaptureOrder(kind, steps)
                self._answer(
                    caller, partial(m.Captured, number), b"", lambda batcher: batcher.capture(order)
                )
            case m.EndCapture() if self._engine is not None:
                self._engine.batcher.end_capture()
            case m.Drain():
                self._draining = True
                self._waits_for_drain.append(caller)
                self._announce_drained()
            case m.Shutdown(fault):
                self.shutdown_error = None if fault is None else error_of(fault)
                self.shut_down.set()

    def _greet(self, caller: Caller) -> None:
        if self._outcome is not None:
            self._send(caller, self._outcome)
            self.greeted.set()
        elif self._engine is not None:
            engine = self._engine
            self._send(
                caller, m.Ready(os.getpid(), caller.connection, engine.context, engine.sequences)
            )

    def _answer(
        self,
        caller: Caller,
        message: Callable[..., m.FromEngine],
        nothing: object,
        ask: Callable[[BatcherThread], Future[Any]],
    ) -> None:
        """Send what the batcher's thread answers, when it does."""

        def send(done: Future[Any]) -> None:
            if caller.identity not in self._callers:
                return
            error = done.exception()
            if error is None:
                self._send(caller, message(done.result()))
            else:
                self._send(caller, message(nothing, fault_of(error)))

        if self._engine is None:
            self._send(caller, message(nothing, fault_of(EngineFailed("the model is not loaded"))))
            return
        try:
            asked = ask(self._engine.batcher)
        except Exception as error:
            self._send(caller, message(nothing, fault_of(error)))
        else:
            asked.add_done_callback(lambda done: self._queue.put(partial(send, done)))

    def _found(
        self, caller: Caller, number: int, insight: Insight | None, fault: Fault | None = None
    ) -> m.InsightFound:
        """Requests get the numbers by which this caller knows them."""
        if insight is not None:
            known = {
                request.id: its
                for request, (connection, its) in list(self._named.items())
                if connection == caller.connection
            }
            renamed = [
                each if each.state == "kept" else each._replace(id=known.get(each.id, -1))
                for each in insight.conversations
            ]
            insight = replace(insight, conversations=renamed)
        return m.InsightFound(number, insight, fault)

    # Requests.

    def _submit(self, caller: Caller, submit: m.Submit) -> None:
        engine = self._engine
        refusal: Exception | None = None
        if engine is None:
            refusal = EngineFailed("the engine has not loaded its model yet")
        elif self._draining:
            refusal = ImpossibleSetting("the engine is being drained: it takes no more requests")
        elif submit.id in caller.requests:
            refusal = ImpossibleSetting(f"request {submit.id} is running: use another id")
        if engine is None or refusal is not None:
            assert refusal is not None, "there is no engine, which is a reason"
            self._send(caller, m.Refused(submit.id, fault_of(refusal)))
            return
        caller.requests[submit.id] = None
        if engine.admission.is_quick(submit.sampling.form):
            self._admit(caller, submit.id, partial(engine.admission.request, submit))
        else:
            made = self._grammars.submit(self._constrained, caller, submit)
            made.add_done_callback(
                lambda done: self._queue.put(partial(self._admit, caller, submit.id, done.result))
            )

    def _constrained(self, caller: Caller, submit: m.Submit) -> Request:
        """In the thread of grammars: none is compiled for a request that was cancelled."""
        if self._engine is None or submit.id not in caller.requests:
            raise EngineFailed("the request was cancelled before its grammar was compiled")
        return self._engine.admission.request(submit)

    def _admit(self, caller: Caller, number: int, make: Callable[[], Request]) -> None:
        if number not in caller.requests:  # it was cancelled meanwhile
            return
        assert self._engine is not None, "requests come later"
        try:
            request = make()
            self._named[request] = (caller.connection, number)
            caller.requests[number] = request
            self._engine.batcher.submit(request, self._callback(caller, number, request))
        except Exception as error:
            self._forget(caller, number)
            self._send(caller, m.Refused(number, fault_of(error)))
        else:
            self._send(caller, m.Accepted(number))

    def _cancel(self, caller: Caller, number: int) -> None:
        request = self._forget(caller, number)
        if request is not None and self._engine is not None:
            self._engine.batcher.cancel(request)
        self._announce_drained()

    def _forget(self, caller: Caller, number: int) -> Request | None:
        request = caller.requests.pop(number, None)
        if request is not None:
            self._named.pop(request, None)
        return request

    def _deliver(self, results: list[tuple[Caller, m.TokenUpdate]]) -> None:
        """One message per caller."""
        updates: dict[bytes, list[m.TokenUpdate]] = {}
        for caller, update in results:
            if update.id not in caller.requests:  # it was cancelled meanwhile
                continue
            updates.setdefault(caller.identity, []).append(update)
            if update.finish is not None or update.token is None:
                self._forget(caller, update.id)
        for identity, several in updates.items():
            if identity in self._callers:
                self._send(self._callers[identity], m.Step(several), of_step=True)
        self._announce_drained()

    def _announce_drained(self) -> None:
        if self._draining and not any(caller.requests for caller in self._callers.values()):
            waiting, self._waits_for_drain = self._waits_for_drain, []
            for caller in waiting:
                self._send(caller, m.Drained())

    # Sending.

    def _broadcast(self, message: m.FromEngine) -> None:
        for caller in list(self._callers.values()):
            self._send(caller, message)

    def _send(self, caller: Caller, message: m.FromEngine, of_step: bool = False) -> None:
        caller.unsent.append(Unsent(m.encode(message), of_step))
        self._flush(caller)

    def _flush(self, caller: Caller) -> None:
        """What the caller's credit allows."""
        while (data := caller.next_to_send(self._options.unread_messages)) is not None:
            try:
                self._socket.send_multipart((caller.identity, data), zmq.NOBLOCK)
            except zmq.ZMQError:  # the caller has disconnected
                self._drop(caller)
                return

    def _drop(self, caller: Caller) -> None:
        self._callers.pop(caller.identity, None)
        for number in list(caller.requests):
            self._cancel(caller, number)

    def _tick(self) -> None:
        now, limit = monotonic(), self._options.unread_s
        for caller in list(self._callers.values()):
            waits = 0.0 if caller.waits_since is None else now - caller.waits_since
            if caller.requests and waits > limit:
                self._give_up(caller)
        if now - self._stats_at >= _STATS_S:
            self._stats_at = now
            for caller in list(self._callers.values()):
                if caller.requests and not caller.unsent:
                    self._send_stats(caller, answer=False)

    def _give_up(self, caller: Caller) -> None:
        """The caller does not read: its requests end, and take no more of the engine's memory."""
        fault = fault_of(
            EngineFailed(
                f"the request was cancelled: {self._options.unread_messages} messages to its "
                f"caller were not read within {self._options.unread_s:g} s"
            )
        )
        ended = list(caller.requests)
        for number in ended:
            self._cancel(caller, number)
        caller.drop_results()
        updates = [m.TokenUpdate(number, None, "cancelled", fault=fault) for number in ended]
        self._send(caller, m.Step(updates))

    def _send_stats(self, caller: Caller, answer: bool) -> None:
        stats = self._stats()
        if stats is not None:
            self._send(caller, m.Stats(stats, answer))

    def _stats(self) -> RunStats | None:
        """The batcher's thread may change what is counted meanwhile."""
        with suppress(RuntimeError):
            return None if self._engine is None else self._engine.batcher.stats()
        return None


def _update(number: int, request: Request, event: Chunk | BaseException) -> m.TokenUpdate:
    if isinstance(event, BaseException):
        return m.TokenUpdate(number, None, fault=fault_of(event))
    if event.token is None:
        fault = None if request.failure is None else fault_of(request.failure)
        return m.TokenUpdate(number, None, event.finish_reason, fault=fault)
    known = event.logprobs or Sampled(event.token)
    return m.TokenUpdate(
        number,
        event.token,
        event.finish_reason,
        request.cached_tokens,
        known.logprob,
        known.alternatives,
        differs=request.differs if len(request.sampled) == 1 else None,
    )
