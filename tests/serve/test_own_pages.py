"""Can a page of another origin use a server without keys, and who else is refused?"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx2", reason="comes with the clients that tests ask with")

from starlette.testclient import TestClient

from moesaic.serve.app import make_app
from moesaic.serve.metrics import ServerMetrics
from moesaic.serve.server_settings import ServerSettings

HERE, OTHER = "http://127.0.0.1:8000", "http://evil.example"


def status(
    headers: dict[str, str], path: str = "/", replica: str | None = None, **settings: Any
) -> int:
    """Of a request to a server without an engine."""
    service = SimpleNamespace(settings=ServerSettings(**settings), metrics=ServerMetrics())
    app = make_app(cast(Any, service), lambda request: None, replica)
    found: int = TestClient(app, base_url=HERE).get(path, headers=headers).status_code
    return found


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, 200),
        ({"origin": HERE}, 200),
        ({"origin": OTHER}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:9000"}, 403),
        ({"host": "localhost:8000", "origin": "http://localhost:8000"}, 200),
        ({"host": "LOCALHOST"}, 200),
        ({"host": "127.8.9.1:80"}, 200),
        ({"host": "[::1]:8000", "origin": "http://[::1]:8000"}, 200),
        ({"host": "evil.example:8000"}, 403),
        ({"host": "evil.example:8000", "origin": "http://evil.example:8000"}, 403),
        ({"host": "localhost.evil.example"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"host": "[evil"}, 403),
    ],
)
def test_a_loopback_server_is_for_this_machine_and_its_own_pages(
    headers: dict[str, str], expected: int
) -> None:
    assert status(headers) == expected
    assert status(headers, host="localhost") == expected
    assert status(headers, cors=("*",)) == 200


def test_other_pages_may_ask_if_they_are_named() -> None:
    assert status({"origin": OTHER}, cors=("http://a", OTHER)) == 200
    assert status({"origin": "http://b"}, cors=("http://a", OTHER)) == 403
    proxied = {"host": "llm.example", "origin": "https://llm.example"}
    assert status(proxied) == 403
    assert status(proxied, cors=("https://llm.example",)) == 200


def test_any_name_may_lead_to_a_server_of_the_network() -> None:
    assert status({"host": "box.lan:8000"}, host="0.0.0.0") == 200
    assert status({"host": "box.lan", "origin": "http://box.lan"}, host="0.0.0.0") == 200
    assert status({"host": "box.lan", "origin": OTHER}, host="0.0.0.0") == 403


def test_health_is_for_all_and_a_key_is_enough() -> None:
    assert status({"origin": OTHER}, path="/page/main.js") == 403
    assert status({"origin": OTHER, "host": "a"}, api_keys=("key",)) == 200
    assert status({"origin": OTHER, "host": "a"}, api_keys=("key",), path="/v1/models") == 401
    assert status({"origin": OTHER, "host": "a"}, path="/health") != 403


def test_a_replica_leaves_the_check_to_the_front() -> None:
    assert status({"origin": OTHER, "host": "a"}, replica="1") == 200
