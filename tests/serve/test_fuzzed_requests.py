"""A sample of `make fuzz-serve`: is every request answered in the words of its API?"""

from __future__ import annotations

import http.client
from collections import Counter
from dataclasses import replace

import pytest
from servers import SOON_S, Server

pytest.importorskip("starlette")

from fuzzing.fuzz_serve import run
from fuzzing.http_requests import FuzzedRequest, request_of
from fuzzing.judged_responses import Answered, complaint

SAMPLE, BY_SOCKET = 300, 100


def test_a_sample_of_every_kind() -> None:
    outcome = run(range(SAMPLE))
    assert outcome.failures == []
    assert outcome.requests == SAMPLE
    kinds = Counter(request_of(number).kind for number in range(SAMPLE))
    assert Counter({kind: outcome_of(outcome.statuses, kind) for kind in kinds}) == kinds
    assert min(outcome_of(outcome.statuses, kind) for kind in kinds) >= 1
    assert len(kinds) == 13


def outcome_of(statuses: Counter[tuple[str, int]], kind: str) -> int:
    return sum(count for (each, _), count in statuses.items() if each == kind)


def test_a_sample_through_a_socket(shared: Server) -> None:
    found = []
    for number in range(10_000, 10_000 + BY_SOCKET):
        request = request_of(number)
        if _can_be_sent(request):
            what = complaint(request, _sent(shared.port, request))
            found += [] if what is None else [(number, what)]
    assert found == []
    assert not any("Traceback" in line for line in shared.lines)


def _can_be_sent(request: FuzzedRequest) -> bool:
    """Paths that no client may send, and answers that would take long, are for the app alone."""
    if b'"tool_choice"' in request.body:  # this server's model has no format for a demanded call
        return False
    plain = request.path.isascii() and request.path.isprintable() and " " not in request.path
    limited = b'"max_' in request.body or request.kind in ("wrong", "method", "path", "no object")
    return plain and limited


def _sent(port: int, request: FuzzedRequest) -> Answered:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SOON_S)
    connection.putrequest(request.method, request.path)
    for name, value in request.headers:
        connection.putheader(name.decode(), value)
    length = "Transfer-Encoding" if request.chunked else "Content-Length"
    connection.putheader(length, "chunked" if request.chunked else str(len(request.body)))
    connection.endheaders()
    for piece in request.pieces:
        if piece:
            connection.send(b"%x\r\n%b\r\n" % (len(piece), piece) if request.chunked else piece)
    if request.chunked:
        connection.send(b"0\r\n\r\n")
    response = connection.getresponse()
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answered(response.status, headers, response.read())


def test_what_is_not_right_is_complained_of() -> None:
    request = replace(request_of(0), path="/v1/completions", method="POST", right=(400,))
    headers = {"x-request-id": "a"}
    error = b'{"error":{"message":"no","type":"t","param":null,"code":null}}'
    assert complaint(request, Answered(400, headers, error)) is None
    for status, names, body in (
        (500, headers, error),
        (400, {}, error),
        (400, headers, b"Bad Request"),
        (400, headers, b'{"error":"no"}'),
        (400, headers, error.replace(b'"no"', b'"Traceback (most recent call last)"')),
        (400, headers, error.replace(b'"no"', b'""')),
    ):
        assert complaint(request, Answered(status, names, body)), (status, body)


def test_a_stream_has_to_end() -> None:
    request = replace(request_of(0), path="/v1/completions", method="POST", right=(200,))
    headers = {"x-request-id": "a", "content-type": "text/event-stream"}
    whole = b': a\n\ndata: {"choices": []}\n\ndata: [DONE]\n\n'
    assert complaint(request, Answered(200, headers, whole)) is None
    for body in (
        whole[:-16],
        whole.replace(b'"choices": []', b'"error": {"a": 1}'),
        b"data: {\n\n",
    ):
        assert complaint(request, Answered(200, headers, body))


def test_a_request_can_be_made_again() -> None:
    assert [request_of(number) for number in range(50)] == [request_of(n) for n in range(50)]
