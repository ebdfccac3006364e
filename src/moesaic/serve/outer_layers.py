"""What stands before every endpoint: a request has an id and leaves a line in the log, there are
not too many connections, and a client needs a key where the server has keys."""

from __future__ import annotations

import re
from time import perf_counter
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moesaic.serve.api_error import CLIENT_GONE, ApiError, too_many_connections
from moesaic.serve.connections import OVER_LIMIT
from moesaic.serve.endpoint import error_response
from moesaic.serve.metrics import ServerMetrics
from moesaic.serve.page_files import is_page
from moesaic.serve.request_record import RequestLog, RequestRecord, record_of
from moesaic.serve.server_settings import ServerSettings

REQUEST_ID = "x-request-id"
_USABLE_ID = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)
OPEN = "/health"  # for load balancers, which have no keys
_POLLED = (OPEN, "/metrics", "/insight")  # not in the log while all is well
_FINE = (200, 304)


class RecordRequests:
    """The outermost layer."""

    def __init__(self, app: ASGIApp, log: RequestLog, metrics: ServerMetrics) -> None:
        self._app, self._log, self._metrics = app, log, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given, begun = Headers(scope=scope).get(REQUEST_ID, ""), perf_counter()
        request_id = given if _USABLE_ID.fullmatch(given) else uuid4().hex
        record = RequestRecord(request_id, scope["method"], scope["path"])
        scope.setdefault("state", {})["record"] = record

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            record.duration_s = perf_counter() - begun
            self._metrics.count_response(record.status or CLIENT_GONE)
            polled = record.path in _POLLED or is_page(record.path)
            if not polled or record.status not in _FINE:
                self._log.write(record)


class RefuseOverLimit:
    """Requests of connections that are too many; a check of health is none of them."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = scope["type"] == "http" and OVER_LIMIT in scope["state"]
        if refused and scope["path"] != OPEN:
            error = too_many_connections(self._settings.max_connections)
            record = record_of(Request(scope))
            record.error = error.message
            await error_response(error, record)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class RequireKey:
    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_open(scope["path"]):
            key = _key(Headers(scope=scope))
            if not self._settings.accepts(key):
                record = record_of(Request(scope))
                await error_response(_unauthorized(key), record)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_open(self, path: str) -> bool:
        return path == OPEN or (self._settings.page and is_page(path))


def _key(headers: Headers) -> str:
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")


def _unauthorized(key: str) -> ApiError:
    what = "the API key is none of this server's" if key else "this server needs an API key"
    return ApiError(
        401,
        f"{what}: send one that it was started with, as in `Authorization: Bearer KEY`",
        "authentication_error",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )
