"""The server's routes and layers."""

from __future__ import annotations

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from moesaic.serve.anthropic.messages import count_tokens, messages
from moesaic.serve.api_error import ApiError
from moesaic.serve.chat import chat_completions
from moesaic.serve.completions import completions
from moesaic.serve.endpoint import Endpoint, answers_errors, error_response
from moesaic.serve.insight.routes import (
    insight,
    insight_capture,
    insight_layer,
    insight_model,
    insight_stream,
)
from moesaic.serve.metrics import ServerMetrics
from moesaic.serve.outer_layers import (
    OPEN,
    REQUEST_ID,
    RecordRequests,
    RefuseOverLimit,
    RequireKey,
)
from moesaic.serve.own_pages import RefuseOtherPages
from moesaic.serve.page_files import page
from moesaic.serve.request_record import RequestLog, record_of
from moesaic.serve.responses.responses import (
    create_response,
    delete_response,
    input_items,
    one_response,
)
from moesaic.serve.responses.store import ResponseStore, response_prefix
from moesaic.serve.server_settings import ServerSettings
from moesaic.serve.service import Service
from moesaic.serve.status import health, metrics, models, one_model, props, slots
from moesaic.serve.tokens import detokenize, tokenize

_ROUTES: tuple[tuple[str, str, Endpoint], ...] = (
    ("POST", "/v1/chat/completions", chat_completions),
    ("POST", "/v1/completions", completions),
    ("POST", "/v1/messages", messages),
    ("POST", "/v1/messages/count_tokens", count_tokens),
    ("POST", "/v1/responses", create_response),
    ("GET", "/v1/responses/{response}", one_response),
    ("DELETE", "/v1/responses/{response}", delete_response),
    ("GET", "/v1/responses/{response}/input_items", input_items),
    ("GET", "/v1/models", models),
    ("GET", "/v1/models/{model:path}", one_model),
    ("POST", "/tokenize", tokenize),
    ("POST", "/detokenize", detokenize),
    ("GET", "/health", health),
    ("GET", "/props", props),
    ("GET", "/slots", slots),
    ("GET", "/metrics", metrics),
    ("GET", "/insight", insight),
    ("GET", "/insight/model", insight_model),
    ("GET", "/insight/layers/{layer:int}", insight_layer),
    ("GET", "/insight/stream", insight_stream),
    ("POST", "/insight/capture", insight_capture),
)
_SERVER = "*"  # for which OPTIONS may ask, as for a path
_PAGE: tuple[tuple[str, str, Endpoint], ...] = (
    ("GET", "/", page),
    ("GET", "/page/{file:path}", page),
)


def make_app(
    service: Service, drop: Callable[[Request], object], replica: str | None = None
) -> Starlette:
    """`drop` closes the connection of a client that does not read. A `replica` is named in the ids
    of what it stores; the process before it keeps the log."""
    settings = service.settings
    log = RequestLog(settings.log if replica is None else None)
    app = Starlette(
        routes=[
            Route(path, answers_errors(endpoint), methods=[method])
            for method, path, endpoint in (*_ROUTES, *(_PAGE if settings.page else ()))
        ],
        middleware=layers(settings, log, service.metrics, first=replica is None),
        exception_handlers={HTTPException: _no_such_route},
    )
    app.state.service, app.state.drop = service, drop
    app.state.responses = ResponseStore(prefix=response_prefix(replica))
    return app


def layers(
    settings: ServerSettings, log: RequestLog, metrics: ServerMetrics, first: bool = True
) -> list[Middleware]:
    """What stands before every endpoint. `first`: nothing before it has checked requests."""
    found = [Middleware(RecordRequests, log, metrics), Middleware(RefuseOverLimit, settings)]
    if first and not settings.api_keys:
        found.append(Middleware(RefuseOtherPages, settings, OPEN))
    if settings.cors:
        found.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.cors,
                allow_methods=("GET", "HEAD", "POST", "DELETE"),
                allow_headers=("*",),
                expose_headers=(REQUEST_ID,),
            )
        )
    if settings.api_keys:
        found.append(Middleware(RequireKey, settings))
    return found


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "the only kind this is called for"
    headers = dict(error.headers or {})
    if allowed := _methods_of(request):
        headers["Allow"] = ", ".join(allowed)
        if request.method == "OPTIONS":
            return Response(headers=headers)
    known = ", ".join(f"{method} {path}" for method, path, _ in _ROUTES)
    what = f"{request.method} {request.url.path}"
    refusal = ApiError(
        error.status_code,
        f"there is no {what} here; there are {known}",
        code="not_found" if error.status_code == 404 else "method_not_allowed",
        headers=headers,
    )
    return error_response(refusal, record_of(request))


def _methods_of(request: Request) -> list[str]:
    """Those that the path has, each of which is a route of its own; `*` is the whole server."""
    routes = [each for each in request.app.routes if isinstance(each, Route)]
    path = request.scope["path"]
    found = [
        each.methods or ()
        for each in routes
        if path == _SERVER or each.matches(request.scope)[0] is not Match.NONE
    ]
    return sorted({"OPTIONS"}.union(*found)) if found else []
