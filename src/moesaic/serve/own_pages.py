"""Which web pages may use a server without keys: its own, and those of the origins in --cors.

A browser sends simple requests to any address for any page, and says whose page it is in `Origin`.
A page whose name resolves to this machine is of the same origin as the server that it asks: on a
loopback address, its name in `Host` is none of this machine. A page cannot know a key, so that
servers with keys need none of this."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from moesaic.serve.api_error import ApiError
from moesaic.serve.endpoint import error_response
from moesaic.serve.request_record import record_of
from moesaic.serve.server_settings import ServerSettings

_ANY = "*"
_LOCAL = "localhost"


class RefuseOtherPages:
    def __init__(self, app: ASGIApp, settings: ServerSettings, open_path: str) -> None:
        """`open_path` is for all."""
        self._app, self._open = app, open_path
        self._origins = {origin.lower() for origin in settings.cors}
        self._hosts = {_host(origin) for origin in self._origins}
        self._loopback = is_loopback(settings.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != self._open:
            error = self._refusal(Headers(scope=scope))
            if error is not None:
                record = record_of(Request(scope))
                record.error = error.message
                await error_response(error, record)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, headers: Headers) -> ApiError | None:
        if _ANY in self._origins:
            return None
        host, origin = headers.get("host", "").lower(), headers.get("origin", "").lower()
        if self._loopback and host and not self._is_own(host):
            return _forbidden(
                f"the request is for the host {host!r}, and this server listens on the loopback "
                "interface alone: ask localhost, or name what stands before the server with "
                f"--cors http://{host}"
            )
        if origin and origin not in self._origins and _host(origin) != host:
            return _forbidden(
                f"the request is from a page of {origin!r}, which is not this server's: name that "
                f"origin with --cors {origin}, or give the server a key"
            )
        return None

    def _is_own(self, host: str) -> bool:
        if host in self._hosts:
            return True
        try:
            return is_loopback(urlsplit(f"//{host}").hostname or "")
        except ValueError:  # no address
            return False


def is_loopback(name: str) -> bool:
    """Whether it means this machine wherever it is resolved."""
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name.lower().removesuffix(".") == _LOCAL


def _host(origin: str) -> str:
    """As `Host` has it: with the port, unless it is the usual one. None has an empty name."""
    return origin.partition("://")[2] or origin


def _forbidden(message: str) -> ApiError:
    return ApiError(403, message, "permission_error", code="forbidden_origin")
