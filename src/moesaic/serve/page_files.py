"""The page at `/`: files of the package, served as they are.

They are no secret, so they need no key; what they show comes from endpoints that do. A browser asks
again whether a file has changed, since all of them must be of one version."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from moesaic.serve.api_error import ApiError

_ROOT, _FOLDER, _INDEX = "/", "/page/", "index.html"
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# Nothing from elsewhere, no inline script, and no page of another origin around this one.
_POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class PageFile(NamedTuple):
    data: bytes
    media_type: str
    tag: str


def is_page(path: str) -> bool:
    """Whether a request of this path is one for the page or a part of it."""
    return path == _ROOT or path.startswith(_FOLDER)


async def page(request: Request) -> Response:
    name = request.path_params.get("file", _INDEX)
    found = page_files().get(name)
    if found is None:
        raise ApiError(404, f"the page has no file {name!r}: it begins at /", code="not_found")
    headers = {**_HEADERS, "ETag": found.tag}
    if found.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(found.data, headers={**headers, "Content-Type": found.media_type})


@cache
def page_files() -> dict[str, PageFile]:
    """By their paths in the folder, such as `chat/chat.js`."""
    return dict(_read(files("moesaic.serve") / "page", ""))


def _read(folder: Traversable, before: str) -> list[tuple[str, PageFile]]:
    found = []
    for each in folder.iterdir():
        kind = _TYPES.get(each.name.rpartition(".")[2])
        if each.is_dir():
            found += _read(each, f"{before}{each.name}/")
        elif kind is not None:
            data = each.read_bytes()
            tag = f'"{sha256(data).hexdigest()[:16]}"'
            found.append((before + each.name, PageFile(data, kind, tag)))
    return found
