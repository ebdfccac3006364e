"""Errors as clients of the API get them: a status, and an error object that says what was asked,
what is possible and what to do. No traceback leaves the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import msgspec
from starlette.responses import Response

from moesaic.core.errors import (
    EngineEnded,
    ImpossibleRequest,
    MoesaicError,
    StuckGrammar,
    WorkerEnded,
)
from moesaic.engine.sampling.sampling_params import SamplingParams

CLIENT_GONE = 499  # as nginx logs a client that has left; it is never sent
NOT_BEGUN = "x-not-begun"  # header of a refusal before any work: another server may be asked
_RESTART_S = 5  # after which a client may ask again whether the engine has been started
_LOG = " Its log:"  # what an `EngineEnded` says from here on is for the server's own log

_PARAMETERS = frozenset(field.name for field in fields(SamplingParams))


class ApiError(Exception):
    """Raised by an endpoint; `type` and `code` are words of the published API."""

    def __init__(
        self,
        status: int,
        message: str,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.type = status, message, type
        self.param, self.code = param, code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        fields = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return {"error": fields}

    def response(self) -> Response:
        return json_response(self.body(), self.status, self.headers)


def json_response(
    body: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(
        msgspec.json.encode(body), status, dict(headers or {}), media_type="application/json"
    )


def impossible(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def too_many(message: str, retry_s: int) -> ApiError:
    return ApiError(
        429,
        message,
        "rate_limit_error",
        code="rate_limit_exceeded",
        headers={"Retry-After": str(retry_s)},
    )


def timed_out(limit_s: float) -> ApiError:
    return ApiError(
        504,
        f"the answer was not finished within {limit_s:g} s, which is this server's limit "
        "(--timeout): ask for fewer tokens, or later",
        "server_error",
        code="timeout",
    )


def too_slow(what: str, limit_s: float) -> ApiError:
    return ApiError(
        408,
        f"{what} did not arrive within {limit_s:g} s, which is this server's limit "
        "(--receive-timeout): send it faster",
        code="request_timeout",
        headers={"Connection": "close"},
    )


def too_many_connections(most: int) -> ApiError:
    return ApiError(
        503,
        f"this server has {most} connections already (--max-connections): ask again later, or use "
        "a connection for several requests",
        "service_unavailable",
        code="too_many_connections",
        headers={"Retry-After": str(_RESTART_S), "Connection": "close"},
    )


def engine_unavailable(what: str, begun: bool = True) -> ApiError:
    """`begun`: the engine may have worked on the request."""
    return ApiError(
        503,
        what,
        "service_unavailable",
        code="engine_unavailable",
        headers={"Retry-After": str(_RESTART_S)} | ({} if begun else {NOT_BEGUN: "1"}),
    )


def engine_lost(error: Exception, begun: bool = True) -> ApiError:
    return engine_unavailable(str(error).partition(_LOG)[0], begun)


def api_error(error: Exception, request_id: str) -> ApiError:
    """What a client may know of an error."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, EngineEnded):
        return engine_lost(error)
    if isinstance(error, ImpossibleRequest) and not isinstance(error, WorkerEnded | StuckGrammar):
        return impossible(str(error), _parameter(str(error)))
    if isinstance(error, MoesaicError):
        what, code = str(error).partition("\n")[0], "generation_failed"
    else:
        what = f"the server failed on this request; its log says why under request {request_id}"
        code = "internal_error"
    return ApiError(500, what, "server_error", code=code)


def expected(error: Exception) -> bool:
    """Whether the message says all there is to say; else the log gets a traceback."""
    return isinstance(error, ApiError | MoesaicError)


def _parameter(message: str) -> str | None:
    """The field of the request that a message of `SamplingParams` is about: its first word."""
    word = message.split(maxsplit=1)[0] if message else ""
    return word if word in _PARAMETERS else None
