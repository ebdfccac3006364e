"""Do HEAD and OPTIONS answer as HTTP says?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from scripted import NAME, InstantEngine, ScriptedServer, scripted_server
from servers import SOON_S

from moesaic.serve.server_settings import ServerSettings

ORIGIN = "http://here:3000"
KEY = {"Authorization": "Bearer right"}
READ = ("/health", "/v1/models", f"/v1/models/{NAME}", "/props", "/slots", "/", "/v1/responses/no")


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


@pytest.fixture(scope="module")
def scripted() -> Iterator[ScriptedServer]:
    settings = ServerSettings(model_names=(NAME,), cors=(ORIGIN,), api_keys=("right",), log="json")
    with scripted_server("qwen3", settings=settings, kind=InstantEngine) as made:
        yield made


class Asker:
    """All on one connection: an answer that does not end would be missed by the next."""

    def __init__(self, address: str) -> None:
        self._connection = HTTPConnection(urlsplit(address).netloc, timeout=SOON_S)

    def close(self) -> None:
        self._connection.close()

    def __call__(self, method: str, path: str, **headers: str) -> Answer:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, path, headers=KEY | given)
        response = self._connection.getresponse()
        known = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, known, response.read())


@contextmanager
def asking(made: ScriptedServer) -> Iterator[Asker]:
    asker = Asker(made.address)
    try:
        yield asker
    finally:
        asker.close()


@pytest.fixture
def ask(scripted: ScriptedServer) -> Iterator[Asker]:
    with asking(scripted) as made:
        yield made


def kept(headers: dict[str, str]) -> dict[str, str]:
    return {name: headers[name] for name in headers if name not in ("x-request-id", "date")}


@pytest.mark.parametrize("path", READ)
def test_head_is_get_without_a_body(ask: Asker, path: str) -> None:
    read, head = ask("GET", path), ask("HEAD", path)
    assert head.body == b""
    assert read.body
    assert (head.status, kept(head.headers)) == (read.status, kept(read.headers))


def test_head_of_a_stream_ends(ask: Asker) -> None:
    head = ask("HEAD", "/insight/stream")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-type"].startswith("text/event-stream")
    assert ask("GET", "/health").status == 200, "on the same connection"


def test_head_of_what_is_only_sent_is_refused(ask: Asker) -> None:
    head = ask("HEAD", "/v1/chat/completions")
    assert (head.status, head.headers["allow"]) == (405, "OPTIONS, POST")


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/health", "GET, HEAD, OPTIONS"),
        ("/v1/chat/completions", "OPTIONS, POST"),
        ("/v1/messages/count_tokens", "OPTIONS, POST"),
        ("/v1/responses/resp_1", "DELETE, GET, HEAD, OPTIONS"),
        ("*", "DELETE, GET, HEAD, OPTIONS, POST"),
    ],
)
def test_options_say_what_a_path_allows(ask: Asker, path: str, methods: str) -> None:
    answer = ask("OPTIONS", path)
    assert (answer.status, answer.headers["allow"], answer.body) == (200, methods, b"")
    assert answer.headers["content-length"] == "0"
    if path != "*":
        refused = ask("PATCH", path)
        assert (refused.status, refused.headers["allow"]) == (405, methods)


def test_there_are_no_options_of_nothing(ask: Asker) -> None:
    assert ask("OPTIONS", "/v1/nothing").status == 404


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
def test_a_page_asks_first_without_a_key(ask: Asker, method: str) -> None:
    asks = {"Origin": ORIGIN, "Access_Control_Request_Method": method, "Authorization": ""}
    asks["Access_Control_Request_Headers"] = "authorization, content-type, x-stainless-lang"
    answer = ask("OPTIONS", "/v1/responses/resp_1", **asks)
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert method in answer.headers["access-control-allow-methods"].split(", ")
    assert "x-stainless-lang" in answer.headers["access-control-allow-headers"]
    other = ask("OPTIONS", "/v1/responses/resp_1", **asks | {"Origin": "http://there"})
    assert other.status == 400
    assert "access-control-allow-origin" not in other.headers


def test_options_that_are_no_page_need_the_key(ask: Asker) -> None:
    assert ask("OPTIONS", "/v1/models", Authorization="").status == 401
