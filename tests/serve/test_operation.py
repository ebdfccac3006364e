"""Does the server do what its operator relies on: streams that stay open, requests that end with
their clients, keys, logs, an orderly end, and an engine that is lost and started again?"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from servers import NAME, QUESTION, SOON_S, Server, server, until

LONG = {"model": NAME, "prompt": "Once upon a time", "max_tokens": 900, "temperature": 0}
LONG_S = LONG | {"stream": True, "ignore_eos": True}


def open_stream(made: Server, body: dict[str, Any]) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", made.port, timeout=SOON_S)
    connection.request("POST", "/v1/completions", json.dumps(body))
    return connection.getresponse()


def lines(response: http.client.HTTPResponse) -> Iterator[str]:
    while line := response.readline():
        if text := line.decode().strip():
            yield text


def test_headers_and_a_comment_come_before_the_prompt_is_read(shared: Server) -> None:
    """The engine is stopped, so that nothing can have been read."""
    engine = shared.engine_pid()
    os.kill(engine, signal.SIGSTOP)
    try:
        response = open_stream(shared, LONG_S | {"max_tokens": 2})
        assert response.status == 200
        assert response.getheader("content-type", "").startswith("text/event-stream")
        found = lines(response)
        assert next(found) == ": the request was accepted"
        assert next(found) == ": keep-alive"
        assert next(found) == ": keep-alive", "by wall clock, again and again"
    finally:
        os.kill(engine, signal.SIGCONT)
    rest = list(found)
    assert rest[-1] == "data: [DONE]"
    assert sum("finish_reason" in each and '"length"' in each for each in rest) == 1


def test_a_client_that_leaves_frees_the_engine(shared: Server) -> None:
    response = open_stream(shared, LONG_S)
    found = lines(response)
    next(each for each in found if each.startswith("data:"))
    (slot,) = shared.json("/slots")
    assert slot["is_processing"]
    before = shared.metric("moesaic_generated_tokens_total")
    response.close()
    until(lambda: shared.metric("moesaic_requests_running") == 0)
    assert shared.metric("moesaic_generated_tokens_total") < before + 800
    assert shared.json("/slots") == []
    until(lambda: any(line.get("finish_reason") == "cancelled" for line in shared.log()))


def test_a_client_that_does_not_read_loses_its_connection(shared: Server) -> None:
    """More is written for it than the system and the server hold."""
    body = {"messages": QUESTION, "n": 4, "temperature": 1, "max_tokens": 900, "stream": True}
    body |= {"ignore_eos": True, "logprobs": True, "top_logprobs": 20}
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", shared.port))
        data = json.dumps(body).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}"
        )
        client.sendall(f"{head}\r\n\r\n".encode() + data)
        until(lambda: any("did not read" in line.get("error", "") for line in shared.log()))
        got = b""
        while piece := client.recv(1 << 16):
            got += piece
    assert not got.endswith(b"0\r\n\r\n"), "the response was not finished"
    until(lambda: shared.metric("moesaic_requests_running") == 0)


def test_a_client_that_leaves_without_a_stream_frees_the_engine(shared: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", shared.port, timeout=SOON_S)
    connection.request("POST", "/v1/completions", json.dumps(LONG | {"ignore_eos": True}))
    until(lambda: len(shared.json("/slots")) == 1)
    connection.close()
    until(lambda: shared.json("/slots") == [])
    until(lambda: shared.metric("moesaic_requests_running") == 0)


def test_requests_have_ids_and_leave_a_line(shared: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", shared.port, timeout=SOON_S)
    body = json.dumps({"messages": QUESTION, "max_tokens": 3, "user": "ann"})
    connection.request("POST", "/v1/chat/completions", body, {"x-request-id": "mine-1"})
    response = connection.getresponse()
    assert response.getheader("x-request-id") == "mine-1"
    used = json.loads(response.read())["usage"]
    until(lambda: any(line["request_id"] == "mine-1" for line in shared.log()))
    (line,) = [line for line in shared.log() if line["request_id"] == "mine-1"]
    assert line["status"] == 200
    assert line["client"] == "ann"
    assert line["prompt_tokens"] == used["prompt_tokens"]
    assert line["generated_tokens"] == used["completion_tokens"]
    assert 0 < line["time_to_first_token_s"] <= line["duration_s"]
    connection.request("GET", "/v1/models", headers={"x-request-id": "two words\t"})
    response = connection.getresponse()
    response.read()
    assert len(response.getheader("x-request-id") or "") == 32, "another one is made"


def test_the_log_says_where_a_prompt_leaves_what_is_kept(shared: Server) -> None:
    """As a date does that a client writes into its system prompt."""
    before = "It was a cold morning in the small town, and the people of the town sat at home. "
    asked = {"max_tokens": 2, "temperature": 0}
    lines: dict[str, dict[str, Any]] = {}
    for request_id, day in (("day-1", "Monday"), ("day-2", "Friday"), ("day-3", "Friday")):
        body = asked | {"prompt": f"{before}Today is {day}, and the sun is not there yet."}
        assert shared.ask("/v1/completions", body, {"x-request-id": request_id})[0] == 200
        until(lambda: any(line["request_id"] == request_id for line in shared.log()))  # noqa: B023
        lines |= {line["request_id"]: line for line in shared.log()}
    differs = lines["day-2"]["prefix_differs"]
    assert "Monday".startswith(differs["kept"].strip())
    assert "Friday".startswith(differs["asked"].strip())
    assert differs["token"] == shared.json("/tokenize", {"prompt": f"{before}Today is"})["count"]
    assert "prefix_differs" not in lines["day-3"], "all of it is kept"


def test_metrics_count_what_was_done(shared: Server) -> None:
    names = ("moesaic_prompt_tokens_total", "moesaic_generated_tokens_total")
    count = "moesaic_time_to_first_token_seconds_count"
    before = [shared.metric(name) for name in (*names, count)]
    used = shared.json("/v1/completions", LONG | {"max_tokens": 5})["usage"]
    after = [shared.metric(name) for name in (*names, count)]
    read = used["prompt_tokens"] - used["prompt_tokens_details"]["cached_tokens"]
    assert after[0] - before[0] == read
    assert after[1] - before[1] == used["completion_tokens"]
    assert after[2] - before[2] == 1
    assert shared.metric("vllm:num_requests_waiting") == 0
    assert 0 <= shared.metric("vllm:kv_cache_usage_perc") <= 1
    assert shared.metric("moesaic_kv_blocks") > 0


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One with keys, a short queue, one answer at a time, and a short end."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("first\n\nsecond\n")
    options = ("--api-key-file", keys, "--served-model-name", "mine", "--served-model-name", "too")
    queue = ("--max-queue", 1, "--max-num-seqs", 1, "--drain", 1, "--log", "json")
    with server(*options, *queue, "--cors", "http://here:3000", "--max-prompt-tokens", 99) as made:
        yield made


def test_a_key_is_needed_but_for_health(guarded: Server) -> None:
    for key in ("first", "second"):
        assert [each.id for each in guarded.client(key).models.list()] == ["mine", "too"]
    with pytest.raises(openai.AuthenticationError) as refusal:
        guarded.client("third").models.list()
    assert refusal.value.code == "invalid_api_key"
    assert guarded.get("/metrics")[0] == 401
    assert guarded.ask("/v1/models", None, {"x-api-key": "first"})[0] == 200
    assert guarded.get("/health") == (200, b'{"status":"ok","engine":"ready"}')


def test_a_prompt_may_be_as_long_as_the_operator_says(guarded: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="this server takes 99"):
        guarded.client("first").completions.create(model="too", prompt=[5] * 100, max_tokens=1)


def test_a_page_of_a_named_origin_may_ask(guarded: Server) -> None:
    for origin, allowed in (("http://here:3000", True), ("http://there", False)):
        connection = http.client.HTTPConnection("127.0.0.1", guarded.port, timeout=SOON_S)
        asks = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        connection.request("OPTIONS", "/v1/chat/completions", headers=asks)
        response = connection.getresponse()
        assert (response.getheader("access-control-allow-origin") == origin) is allowed


def test_a_full_queue_is_429_and_the_end_waits_for_what_runs(guarded: Server) -> None:
    """Last of this server: it is ended."""
    client = guarded.client("first")
    ask = {"model": "mine", "prompt": "Once", "temperature": 0, "extra_body": {"ignore_eos": True}}
    running = client.completions.create(**ask, max_tokens=20, stream=True)
    waiting = client.completions.create(**ask, max_tokens=1000, stream=True)
    with pytest.raises(openai.RateLimitError) as refusal:
        client.completions.create(**ask, max_tokens=1)
    assert int(refusal.value.response.headers["retry-after"]) >= 1
    guarded.process.send_signal(signal.SIGTERM)
    finished = [chunk.choices[0].finish_reason for chunk in running]
    assert finished[-1] == "length", "what runs may finish"
    with pytest.raises(openai.APIError, match="the server is ending"):
        for _ in waiting:
            pass
    assert guarded.process.wait(SOON_S) == 0
    assert not any("Traceback" in line for line in guarded.lines)


def test_a_lost_engine_is_an_error_and_is_started_again_once() -> None:
    with server("--log", "json") as made:
        client = made.client()
        for again in (True, False):
            stream = client.completions.create(**LONG, stream=True, extra_body={"ignore_eos": True})
            next(iter(stream))
            os.kill(made.engine_pid(), signal.SIGKILL)
            with pytest.raises(openai.APIError, match="was ended by SIGKILL") as lost:
                for _ in stream:
                    pass
            assert "Its log" not in str(lost.value)
            if again:
                assert made.get("/health")[0] == 503, "it is loading"
                until(lambda: made.get("/health")[0] == 200)
                assert made.json("/v1/completions", LONG | {"max_tokens": 2})["choices"]
        until(lambda: made.get("/health")[0] == 503)
        with pytest.raises(openai.InternalServerError, match="SIGKILL") as refusal:
            client.completions.create(**LONG)
        assert refusal.value.status_code == 503
        assert made.metric("moesaic_engine_ready") == 0
        assert made.end(signal.SIGINT) == 0


def test_clients_at_the_same_time_get_their_own_answers(shared: Server) -> None:
    """More than run at once. An echo shows whose answer it is."""
    texts: dict[int, str] = {}

    def ask(number: int) -> None:
        body = {"prompt": f"Number {number}:", "max_tokens": 6, "echo": True}
        texts[number] = shared.json("/v1/completions", body)["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON_S)
    for number in range(8):
        assert texts[number].startswith(f"Number {number}:")
