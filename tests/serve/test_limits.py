"""Do slow clients, long answers and idle hours cost the server no more than its operator allows?
Clients are raw sockets, since published ones are neither slow nor broken."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from servers import QUESTION, SOON_S, Server, engines_of, server, until

IDLE_S = 1.0
LONG = {"prompt": "Once upon a time", "max_tokens": 900, "temperature": 0, "ignore_eos": True}
SHORT = {"messages": QUESTION, "max_tokens": 3, "temperature": 0}


@pytest.fixture(scope="module")
def strict() -> Iterator[Server]:
    options = ("--receive-timeout", 1, "--max-connections", 3, "--timeout", 1)
    with server(*options, "--log", "json", "--keep-alive-s", 0.2) as made:
        yield made


def connected(made: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", made.port), timeout=SOON_S)


def answered(client: socket.socket) -> tuple[int, dict[str, str], Any]:
    """What is read until the server closes the connection."""
    data = b""
    while piece := client.recv(1 << 16):
        data += piece
    head, _, body = data.decode().partition("\r\n\r\n")
    first, *rest = head.split("\r\n")
    headers = dict(re.split(": *", line.lower(), maxsplit=1) for line in rest)
    return int(first.split()[1]), headers, json.loads(body)


def trickle(client: socket.socket, data: bytes) -> None:
    """One byte now and then, until the other side has closed."""
    for byte in data:
        try:
            client.sendall(bytes([byte]))
        except OSError:
            return
        time.sleep(0.1)


@pytest.mark.parametrize(
    "sent", [b"GET /health HT", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"]
)
def test_headers_that_do_not_arrive_end_the_connection(strict: Server, sent: bytes) -> None:
    with closing(connected(strict)) as client:
        client.sendall(sent)
        assert strict.get("/health")[0] == 200, "others are served meanwhile"
        status, headers, body = answered(client)
    assert (status, headers["connection"]) == (408, "close")
    assert body["error"]["code"] == "request_timeout"
    assert "the headers did not arrive within 1 s" in body["error"]["message"]


def test_a_connection_without_a_request_is_closed(strict: Server) -> None:
    with closing(connected(strict)) as client:
        assert client.recv(1) == b""


def test_bytes_now_and_then_win_no_time(strict: Server) -> None:
    with closing(connected(strict)) as client:
        began = time.monotonic()
        trickle(client, b"GET /health HTTP/1.1\r\nx-" + b"a" * 10 * SOON_S)
        assert time.monotonic() - began < SOON_S


def test_a_body_that_does_not_arrive_is_an_error(strict: Server) -> None:
    with closing(connected(strict)) as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
            + b'{"prompt'
        )
        status, _, body = answered(client)
    assert status == 408
    assert "the body did not arrive within 1 s" in body["error"]["message"]


def test_a_connection_may_be_used_again_after_a_while(strict: Server) -> None:
    """The limit is of requests, not of connections."""
    with closing(connected(strict)) as client:
        for _ in range(3):
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            data = b""
            while not data.endswith(b"}"):
                data += client.recv(1 << 16)
            assert data.startswith(b"HTTP/1.1 200")
            time.sleep(0.6)


def test_connections_beyond_the_limit_are_refused(strict: Server) -> None:
    body = json.dumps(LONG | {"stream": True}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    before = strict.metric("moesaic_refused_connections_total")
    streams = [connected(strict) for _ in range(3)]
    try:
        for each in streams:
            each.sendall(head.encode() + body)
            assert each.recv(1 << 12).startswith(b"HTTP/1.1 200")
        with closing(connected(strict)) as client:
            client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
            status, headers, refusal = answered(client)
        assert strict.get("/health")[0] == 200, "a check of health is no request"
    finally:
        for each in streams:
            each.close()
    assert (status, headers["retry-after"]) == (503, "5")
    assert refusal["error"]["code"] == "too_many_connections"
    until(lambda: strict.get("/v1/models")[0] == 200)
    assert strict.metric("moesaic_refused_connections_total") >= before + 2


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_takes_too_long_ends_with_an_error(strict: Server, stream: bool) -> None:
    until(lambda: strict.get("/slots") == (200, b"[]"))
    status, data = strict.ask(
        "/v1/completions", LONG | {"n": 4, "temperature": 1, "stream": stream}
    )
    if stream:
        assert status == 200
        *_, last, done, _ = data.decode().split("\n\n")
        assert done == "data: [DONE]"
        error = json.loads(last.removeprefix("data: "))["error"]
    else:
        assert status == 504
        error = json.loads(data)["error"]
    assert error["code"] == "timeout"
    assert "was not finished within 1 s" in error["message"]
    until(lambda: strict.metric("moesaic_requests_running") == 0)


def test_every_line_after_the_first_answer_is_json(strict: Server) -> None:
    """Also what the HTTP library reports."""
    with closing(connected(strict)) as client:
        client.sendall(b"\x16\x03\x01 no http\r\n\r\n")
        client.recv(1 << 12)
    until(lambda: any("Invalid HTTP" in line for line in list(strict.lines)))
    lines = list(strict.lines)
    begun = next(at for at, line in enumerate(lines) if " at http://" in line)
    for line in lines[begun + 1 :]:
        assert "time" in json.loads(line), line


@pytest.fixture(scope="module")
def idle() -> Iterator[Server]:
    with server("--idle-unload", IDLE_S, "--keep-alive-s", 0.2, "--log", "json") as made:
        yield made


def unloaded(made: Server) -> bool:
    return bool(made.json("/health")["engine"] == "unloaded")


def test_an_idle_engine_is_ended_and_starts_for_the_next_request(idle: Server) -> None:
    engine = idle.engine_pid()
    until(lambda: unloaded(idle) and not engines_of(idle.process.pid))
    until(lambda: not os.path.exists(f"/proc/{engine}"))
    assert idle.metric("moesaic_engine_loaded") == 0
    assert idle.metric("moesaic_engine_ready") == 1, "requests are taken"
    assert idle.metric("moesaic_kv_blocks") == 0
    assert idle.json("/tokenize", {"prompt": "Once"})["count"] > 0, "it needs no engine"
    assert unloaded(idle)
    events = idle.ask("/v1/chat/completions", SHORT | {"stream": True})[1].decode()
    assert events.count(": keep-alive") > 1, "while the model is loaded"
    assert events.endswith("data: [DONE]\n\n")
    assert "error" not in events
    assert idle.metric("moesaic_engine_loaded") == 1
    assert idle.metric("moesaic_engine_unloads_total") >= 1
    assert idle.engine_pid() != engine


def test_a_request_keeps_the_engine(idle: Server) -> None:
    """One that takes longer than the engine may be idle; then the next end, by a whole answer."""
    before = idle.metric("moesaic_engine_unloads_total")
    answer = idle.json("/v1/completions", LONG)
    assert answer["usage"]["completion_tokens"] == 900
    assert idle.metric("moesaic_engine_unloads_total") <= before + 1, "at most before it began"
    until(lambda: unloaded(idle))
    assert idle.json("/v1/chat/completions", SHORT)["usage"]["completion_tokens"] == 3


def test_an_unloaded_server_ends_in_order(idle: Server) -> None:
    """Last of this server."""
    until(lambda: unloaded(idle))
    assert idle.end() == 0
    assert not any("Traceback" in line for line in idle.lines)
