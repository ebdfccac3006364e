"""One request on its way through a replica."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from moesaic.serve.api_error import ApiError, engine_unavailable
from moesaic.serve.replicas.call import Call, Ended, Head
from moesaic.serve.request_record import RequestRecord

Send = Callable[[Call], Any]  # to a stream of messages that can be cancelled


class ReplicaLost(Exception):
    """The replica has ended while it answered."""


class Forwarding:
    """`begin` once, then `pieces` once; `end` follows in any case."""

    def __init__(self, send: Send, call: Call, record: RequestRecord) -> None:
        self.on_end: Callable[[], object] = lambda: None  # called once
        self.lost = False  # by the replica's end
        self._call, self._record = call, record
        self._stream = send(call)
        self._task: asyncio.Task[Any] | None = None
        self._stopped: ApiError | None = None
        self._ended = False

    @property
    def replica(self) -> str | None:
        return None if self._call.ticket is None else self._call.ticket.replica

    async def begin(self) -> Head:
        head = await self._next()
        assert isinstance(head, Head), "it comes first"
        self._record.replica = self.replica
        return head

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body."""
        while not isinstance(message := await self._next(), Ended):
            assert isinstance(message, bytes), "the head came before"
            yield message
        for name, value in message.record.items():
            setattr(self._record, name, value)

    def stop(self, error: ApiError) -> None:
        """End it: the reader of its pieces gets this error."""
        self._stopped = error
        if self._task is not None:
            self._task.cancel()

    def end(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._stream.cancel()
        if self._call.ticket is not None:
            self._call.ticket.end()
        self.on_end()

    async def _next(self) -> Any:
        self._task = task = asyncio.current_task()
        try:
            if self._stopped is not None:
                raise self._stopped
            return await anext(self._stream)
        except asyncio.CancelledError:
            if self._stopped is None or task is None:
                raise
            task.uncancel()
            raise self._stopped from None
        except ApiError:
            raise
        except Exception as error:
            raise self._error(error) from error
        finally:
            self._task = None

    def _error(self, error: Exception) -> Exception:
        """Clients get the error of a lost replica; others are the server's own mistakes."""
        if not is_loss(error):
            return error
        self.lost = True
        return engine_unavailable(
            f"replica {self.replica or ''}, which computed this answer, has ended before it was "
            "complete: it is started again, and others go on; ask again"
        )


def is_loss(error: Exception) -> bool:
    import grpc
    from ray.exceptions import RayActorError

    return isinstance(error, RayActorError | grpc.aio.AioRpcError | StopAsyncIteration)
