"""The front's routes: what all replicas say together, and everything else, which one of them
answers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moesaic.serve.anthropic.error_form import MESSAGES
from moesaic.serve.api_error import NOT_BEGUN, ApiError, engine_unavailable, json_response
from moesaic.serve.app import layers
from moesaic.serve.endpoint import (
    answers_errors,
    error_event,
    noted,
    read_bytes,
    while_connected,
)
from moesaic.serve.event_stream import DONE, EventStream
from moesaic.serve.metrics import CONTENT_TYPE
from moesaic.serve.outer_layers import REQUEST_ID
from moesaic.serve.replicas.call import Call, Head
from moesaic.serve.replicas.conversation import route_of
from moesaic.serve.replicas.forwarding import Forwarding
from moesaic.serve.replicas.front import Front
from moesaic.serve.replicas.merged_metrics import merged
from moesaic.serve.request_record import RequestLog, record_of

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
_ANSWERS_S = 5.0  # for a replica to say how it is
_UNAVAILABLE, _OK = 503, 200
_NO_DONE = ("/v1/responses", MESSAGES)  # whose streams end without
_NUMBER = re.compile(rb'"sequence_number":(\d+)}\s*\Z')  # of the event that ends a piece
_NOT_BEGUN = NOT_BEGUN.encode()
_HOP = frozenset({b"connection", b"transfer-encoding", b"content-length", _NOT_BEGUN})


def make_front_app(front: Front, drop: Callable[[Request], object]) -> Starlette:
    app = Starlette(
        routes=[
            Route("/health", answers_errors(health), methods=["GET"]),
            Route("/metrics", answers_errors(metrics), methods=["GET"]),
            Route("/slots", answers_errors(slots), methods=["GET"]),
            Route("/props", answers_errors(props), methods=["GET"]),
            Route("/{path:path}", answers_errors(forward), methods=_METHODS),
        ],
        middleware=layers(front.settings, RequestLog(front.settings.log), front.metrics),
    )
    app.state.front, app.state.drop = front, drop
    return app


def front_of(request: Request) -> Front:
    front = request.app.state.front
    assert isinstance(front, Front), "the app is made with one"
    return front


async def forward(request: Request) -> Response:
    front = front_of(request)
    body = await read_bytes(request, front.settings)
    forwarding, head = await while_connected(request, _begun(front, request, body))
    try:
        if not _is_stream(head):
            answer = await while_connected(request, _whole(forwarding))
            forwarding.end()
            return _response(head, answer)
        return _Stream(request, forwarding, head)
    except BaseException:
        forwarding.end()
        raise


async def _begun(front: Front, request: Request, body: bytes) -> tuple[Forwarding, Head]:
    """At a second replica where the first one takes no requests now. What may have ended an engine
    is not given to another one."""
    front.refuse_unavailable()
    forwarding, head = await _asked(front, request, body)
    if _may_ask_again(front, head):
        forwarding.end()
        forwarding, head = await _asked(front, request, body)
    return forwarding, head


async def _asked(front: Front, request: Request, body: bytes) -> tuple[Forwarding, Head]:
    forwarding = front.begin(_call(request, body), record_of(request))
    try:
        head = await forwarding.begin()
    except BaseException:
        forwarding.end()
        raise
    if head.status == _UNAVAILABLE:
        front.avoid(forwarding.replica)
    return forwarding, head


def _may_ask_again(front: Front, head: Head) -> bool:
    refused = any(name == _NOT_BEGUN for name, _ in head.headers)
    return (
        head.status == _UNAVAILABLE and refused and len(front.replicas) > 1 and not front.draining
    )


def _call(request: Request, body: bytes) -> Call:
    path, client = request.url.path, request.client
    own = [(name, value) for name, value in request.headers.raw if name != REQUEST_ID.encode()]
    own.append((REQUEST_ID.encode(), record_of(request).request_id.encode()))
    return Call(
        request.method,
        path,
        request.url.query.encode(),
        own,
        None if client is None else (client.host, client.port),
        body,
        route_of(path, body),
    )


async def _whole(forwarding: Forwarding) -> bytes:
    return b"".join([piece async for piece in forwarding.pieces()])


def _response(head: Head, body: bytes) -> Response:
    made = Response(body, head.status)
    kept = [each for each in head.headers if each[0] not in _HOP]
    made.raw_headers = [*kept, (b"content-length", str(len(body)).encode())]
    return made


def _is_stream(head: Head) -> bool:
    kinds = [value for name, value in head.headers if name == b"content-type"]
    return any(kind.startswith(EventStream.media_type.encode()) for kind in kinds)


class _Stream(EventStream):
    """The replica has written the comments that keep it alive."""

    begin = b""

    def __init__(self, request: Request, forwarding: Forwarding, head: Head) -> None:
        pieces = _with_error(request, forwarding)
        super().__init__(pieces, None, forwarding.end, request.app.state.drop)
        self.status_code = head.status
        self.raw_headers = [each for each in head.headers if each[0] not in _HOP]


async def _with_error(request: Request, forwarding: Forwarding) -> AsyncGenerator[bytes, None]:
    record, number = record_of(request), 0
    try:
        async for piece in forwarding.pieces():
            yield piece
            if (last := _NUMBER.search(piece)) is not None:
                number = int(last[1]) + 1
    except Exception as error:
        yield error_event(noted(error, record), record, number)
        if not record.path.startswith(_NO_DONE):
            yield DONE


async def _of_all(request: Request, path: str) -> dict[str, tuple[int, bytes]]:
    """What each replica says; one that does not is left out."""
    front = front_of(request)
    names = list(front.replicas)
    asked = (asyncio.wait_for(front.ask(name, path), _ANSWERS_S) for name in names)
    said = await asyncio.gather(*asked, return_exceptions=True)
    return {
        name: each
        for name, each in zip(names, said, strict=True)
        if not isinstance(each, BaseException)
    }


async def health(request: Request) -> Response:
    """200 when some replica takes requests."""
    front_of(request).refuse_unavailable()
    said = await _of_all(request, "/health")
    ready = [name for name, (status, _) in said.items() if status == _OK]
    if not ready:
        raise next(map(_refusal, said.values()), engine_unavailable("no replica answers"))
    return json_response({"status": "ok", "replicas": ready})


def _refusal(said: tuple[int, bytes]) -> ApiError:
    return engine_unavailable(msgspec.json.decode(said[1])["error"]["message"])


async def metrics(request: Request) -> Response:
    texts = {
        name: said.decode() for name, (_, said) in (await _of_all(request, "/metrics")).items()
    }
    own = "".join(f"{line}\n" for line in front_of(request).metrics.response_lines())
    return Response(merged(texts) + own, headers={"Content-Type": CONTENT_TYPE})


async def slots(request: Request) -> Response:
    found: list[Any] = []
    for name, (_, said) in (await _of_all(request, "/slots")).items():
        found += [{**slot, "replica": name} for slot in msgspec.json.decode(said)]
    return json_response(found)


async def props(request: Request) -> Response:
    """Of one replica, but for the slots of all."""
    said = {
        n: msgspec.json.decode(each) for n, (_, each) in (await _of_all(request, "/props")).items()
    }
    if not said:
        raise engine_unavailable("no replica answers")
    slots_of_all = sum(each["total_slots"] for each in said.values())
    first = next(iter(said.values()))
    return json_response({**first, "total_slots": slots_of_all, "replicas": [*said]})
