"""What endpoints share: a body is read up to a limit, an error becomes the API's, and work whose
client has left is cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import wraps
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from moesaic.serve.anthropic.error_form import MESSAGES, error_body
from moesaic.serve.api_error import (
    CLIENT_GONE,
    ApiError,
    api_error,
    expected,
    json_response,
    too_slow,
)
from moesaic.serve.event_stream import DONE, EventStream, disconnected, event, named_event
from moesaic.serve.generation import Generation
from moesaic.serve.request_record import RequestRecord, record_of
from moesaic.serve.schemas import Body, decode
from moesaic.serve.server_settings import ServerSettings
from moesaic.serve.service import Service

_RESPONSES = "/v1/responses"
_MOST_READ_AWAY, _READ_AWAY_S = 256 << 20, 10.0  # of a body that is too large
_log = logging.getLogger("moesaic.serve")
Endpoint = Callable[[Request], Awaitable[Response]]
Result = TypeVar("Result")


def service_of(request: Request) -> Service:
    service = request.app.state.service
    assert isinstance(service, Service), "the app is made with one"
    return service


def answers_errors(endpoint: Endpoint) -> Endpoint:
    @wraps(endpoint)
    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ClientDisconnect:
            record_of(request).error = "the client has left"
            return Response(status_code=CLIENT_GONE)
        except Exception as error:
            return error_response(noted(error, record_of(request)), record_of(request))

    return answer


def error_response(error: ApiError, record: RequestRecord) -> Response:
    """In the form of the API that was asked."""
    if record.path.startswith(MESSAGES):
        return json_response(error_body(error, record.request_id), error.status, error.headers)
    return error.response()


def noted(error: Exception, record: RequestRecord) -> ApiError:
    """The error as the client gets it; the log gets all of it."""
    record.error = str(error) or type(error).__name__
    if not expected(error):
        _log.error("request %s failed", record.request_id, exc_info=error)
    return api_error(error, record.request_id)


async def read_body(request: Request, kind: type[Body]) -> Body:
    return decode(await read_bytes(request, service_of(request).settings), kind)


async def read_bytes(request: Request, settings: ServerSettings) -> bytes:
    limit = settings.max_body_bytes
    stated = request.headers.get("content-length", "")
    pieces = request.stream()
    if not (stated.isdecimal() and int(stated) > limit):
        try:
            async with asyncio.timeout(settings.receive_s):
                data = await _up_to(limit, pieces)
        except TimeoutError:
            raise too_slow("the body", settings.receive_s) from None
        if data is not None:
            return data
    await _read_away(pieces)
    raise _too_large(limit)


async def _up_to(limit: int, pieces: AsyncGenerator[bytes, None]) -> bytes | None:
    """The whole; None: there is more."""
    data = bytearray()
    async for piece in pieces:
        data += piece
        if len(data) > limit:
            return None
    return bytes(data)


async def _read_away(pieces: AsyncGenerator[bytes, None]) -> None:
    """Most clients read an answer only when they have sent all, and a connection that is closed
    before takes the answer with it."""
    left = _MOST_READ_AWAY
    with suppress(TimeoutError):
        async with asyncio.timeout(_READ_AWAY_S):
            async for piece in pieces:
                left -= len(piece)
                if left < 0:
                    return


def _too_large(limit: int) -> ApiError:
    return ApiError(
        413,
        f"the body has more than {limit / 1e6:g} MB (10^6 bytes), which is what this server takes "
        "(--max-body-mb): send less",
        code="body_too_large",
        headers={"Connection": "close"},  # what was not read is not read
    )


async def while_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of this work, which is cancelled when the client leaves."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(disconnected(request.receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


def event_stream(
    request: Request,
    generation: Generation,
    events: AsyncGenerator[bytes, None],
    last: bytes = DONE,
    failed: Callable[[ApiError], bytes] | None = None,
) -> EventStream:
    """A stream of these events, and then the last one. An error that ends them is an event, too:
    what `failed` makes of it, or else the API's usual one."""

    async def with_error() -> AsyncGenerator[bytes, None]:
        try:
            async for data in events:
                yield data
        except Exception as error:
            what = noted(error, generation.record)
            yield error_event(what, generation.record) if failed is None else failed(what)
        finally:
            await events.aclose()
        if last:
            yield last

    return EventStream(
        with_error(),
        service_of(request).settings.keep_alive_s,
        generation.end,
        request.app.state.drop,
    )


def error_event(error: ApiError, record: RequestRecord, number: int = 0) -> bytes:
    """`number`: the event's place in its stream, where the API counts them."""
    if record.path.startswith(MESSAGES):
        return named_event("error", msgspec.json.encode(error_body(error, record.request_id)))
    if record.path.startswith(_RESPONSES):
        return response_error_event(error, number)
    return event(msgspec.json.encode(error.body()))


def response_error_event(error: ApiError, number: int) -> bytes:
    """With the fields of the published type, and with the object at which published clients raise
    an error."""
    fields = {"code": error.code, "message": error.message, "param": error.param}
    body = {"type": "error", **fields, **error.body(), "sequence_number": number}
    return named_event("error", msgspec.json.encode(body))
