"""A thread that drives a batcher for others: they leave orders and are told what comes of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

import torch

from moesaic.engine.completion import Chunk
from moesaic.engine.loading import LoadedModel
from moesaic.engine.request import Request

Tell = Callable[[Chunk | BaseException], None]  # called in the worker's thread
_Order = Callable[[], None]


class Worker:
    """Orders are carried out between steps, in order. Every request is told of its end: by a chunk
    with a finish reason, or by the error that ended it. `tell` raises `RuntimeError` where nobody
    listens any more, which cancels the request."""

    def __init__(self, model: LoadedModel) -> None:
        self._model, self._batcher = model, model.batcher
        self._listeners: dict[Request, Tell] = {}
        self._orders: SimpleQueue[_Order | None] = SimpleQueue()  # None: the last one
        self._lock = threading.Lock()  # nothing is ordered after the last order
        self._closed = False
        self._untold: BaseException | None = None  # an error that came while nobody listened
        self._thread = threading.Thread(target=self._work, name="moesaic-batcher", daemon=True)
        self._thread.start()

    def submit(self, request: Request, tell: Tell) -> None:
        with self._lock:
            self._model.refuse_if(self._closed)
            self._orders.put(lambda: self._accept(request, tell))

    def cancel(self, request: Request) -> None:
        """Nobody listens to it any more."""
        with self._lock:
            if not self._closed:
                self._orders.put(lambda: self._drop(request))

    def close(self) -> None:
        """Cancels what goes on, and waits for the thread. Raises what nobody was told of."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._orders.put(None)
        self._thread.join()
        untold, self._untold = self._untold, None
        if untold is not None:
            raise untold

    def _work(self) -> None:
        news: Chunk | BaseException = Chunk("", None, "cancelled")
        try:
            torch.set_num_threads(self._model.threads)  # of this thread only
            while self._advance():
                pass
            self._batcher.cancel_all()
        except BaseException as error:
            news = error
        with self._lock:
            self._closed = True
        while not self._orders.empty():  # after an error: those who were not heard yet
            if (order := self._orders.get()) is not None:
                order()
        self._tell_all(news)

    def _advance(self) -> bool:
        """Orders, then a step. What fails ends all requests, not the thread: a client who leaves
        ends a recorded document, too. False: there was the last order."""
        try:
            if not self._carry_out_orders():
                return False
            for request, chunk in self._batcher.step():
                self._tell(request, chunk)
        except BaseException as error:
            self._batcher.cancel_all()
            self._tell_all(error)
        return True

    def _carry_out_orders(self) -> bool:
        """Waits for one if there is nothing else to do. False: that was the last one."""
        while self._batcher.idle or not self._orders.empty():
            order = self._orders.get()
            if order is None:
                return False
            order()
        return True

    def _accept(self, request: Request, tell: Tell) -> None:
        self._listeners[request] = tell
        self._batcher.submit(request)

    def _drop(self, request: Request) -> None:
        self._listeners.pop(request, None)
        self._batcher.cancel(request)

    def _tell(self, request: Request, news: Chunk | BaseException) -> None:
        tell = self._listeners.get(request)
        if tell is None:
            return
        if isinstance(news, BaseException) or news.finish_reason is not None:
            del self._listeners[request]
        try:
            tell(news)
        except RuntimeError:
            self._drop(request)

    def _tell_all(self, news: Chunk | BaseException) -> None:
        if isinstance(news, BaseException) and not self._listeners:
            self._untold = news
        for request in list(self._listeners):
            self._tell(request, news)
