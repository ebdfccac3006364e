"""Do several replicas answer as the single server does, a conversation always at the one that has
its cache; and does the server go on when one of them is killed?"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from servers import NAME, QUESTION, SOON_S, Server, server, until

pytest.importorskip("ray", reason="the ray extra is not installed")

LONG = {"prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": True, "stream": True}
START_S, RESTART_S = 600, 300  # on a busy machine


@pytest.fixture(scope="module")
def replicas() -> Iterator[Server]:
    with server("--replicas", 2, "--api-key", "key", "--drain", 20, seconds=START_S) as made:
        made.headers = {"x-api-key": "key"}
        yield made


def ask(made: Server, messages: list[dict[str, Any]], **fields: Any) -> Any:
    body = {"messages": messages, "temperature": 0, "max_tokens": 12, **fields}
    return made.json("/v1/chat/completions", body)


def replica_of(made: Server, request_id: str) -> str:
    until(lambda: any(line["request_id"] == request_id for line in made.log()))
    (line,) = [line for line in made.log() if line["request_id"] == request_id]
    return str(line["replica"])


def converse(made: Server, name: str) -> tuple[set[str], list[int]]:
    """The replicas that its turns met, and the tokens that each found in the cache."""
    messages: list[dict[str, Any]] = []
    met, cached = set(), []
    for turn in range(3):
        messages.append({"role": "user", "content": f"{name} has {turn + 4} red pens. Count them."})
        body = {"messages": messages, "temperature": 0, "max_tokens": 12}
        headers = {"x-request-id": f"{name}-{turn}"}
        status, data = made.ask("/v1/chat/completions", body, headers)
        assert status == 200, data
        answer = json.loads(data)
        messages.append(answer["choices"][0]["message"])
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        met.add(replica_of(made, f"{name}-{turn}"))
    return met, cached


def test_conversations_meet_their_cache_and_spread(replicas: Server) -> None:
    all_met = set()
    for name in ("Ann", "Bob", "Carl"):
        met, cached = converse(replicas, name)
        assert len(met) == 1
        assert cached[0] < cached[1] < cached[2]
        all_met |= met
    assert len(all_met) == 2
    assert set(replicas.json("/health")["replicas"]) == all_met
    _, text = replicas.get("/metrics")
    for name in all_met:
        assert f'moesaic_engine_ready{{replica="{name}"}} 1' in text.decode()


@pytest.mark.long
def test_answers_are_those_of_the_single_server(replicas: Server) -> None:
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"messages": QUESTION, "temperature": 0, "logprobs": True}),
        ("/v1/completions", {"prompt": ["One", "Two"], "temperature": 0, "max_tokens": 9, "n": 1}),
        ("/v1/messages", {"model": NAME, "messages": QUESTION, "max_tokens": 20}),
        ("/v1/responses", {"input": "How many?", "max_output_tokens": 9, "temperature": 0}),
        ("/tokenize", {"prompt": "One two"}),
    ]
    with server() as single:
        for path, body in asked:
            assert _said(replicas.json(path, body)) == _said(single.json(path, body)), path
        for path, data in (("/v1/chat/completions", b"{"), ("/v1/none", b""), ("/health", b"{}")):
            there, here = replicas.ask(path, data), single.ask(path, data)
            assert there[0] == here[0], path


def _said(answer: Any) -> Any:
    """Without what differs from request to request."""
    if isinstance(answer, dict):
        other = ("id", "created", "created_at", "cached_tokens")
        return {name: _said(each) for name, each in answer.items() if name not in other}
    return [_said(each) for each in answer] if isinstance(answer, list) else answer


@pytest.mark.long
def test_stored_responses_are_found_again(replicas: Server) -> None:
    made = [
        replicas.json("/v1/responses", {"input": f"{number} pens", "max_output_tokens": 3})
        for number in range(9)
    ]
    assert len({each["id"].split("_")[1] for each in made}) == 2, "they spread"
    for each in made:
        more = {"input": "And more?", "previous_response_id": each["id"], "max_output_tokens": 3}
        later = replicas.json("/v1/responses", more)
        assert later["id"].split("_")[1] == each["id"].split("_")[1]
        assert len(replicas.json(f"/v1/responses/{later['id']}/input_items")["data"]) == 3
    status, _ = replicas.get("/v1/responses/resp_gone_00")
    assert status == 404


@pytest.mark.long
def test_keys_and_limits_are_those_of_the_server(replicas: Server) -> None:
    assert replicas.ask("/v1/models", None, {"x-api-key": "other"})[0] == 401
    assert replicas.ask("/tokenize", b" " * 33_000_000)[0] == 413
    (line,) = [line for line in replicas.log() if line.get("status") == 413]
    assert "--max-body-mb" in line["error"]


@pytest.mark.long
def test_a_client_that_leaves_frees_its_replica(replicas: Server) -> None:
    response = stream(replicas)
    until(lambda: len(replicas.json("/slots")) == 1)
    response.close()
    until(lambda: replicas.json("/slots") == [])


@pytest.mark.long
def test_all_ports_are_of_this_machine_alone(replicas: Server) -> None:
    found = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=False)
    pids = {f"pid={pid}," for pid in processes(replicas)}
    own = [line for line in found.stdout.splitlines() if any(pid in line for pid in pids)]
    if not own:
        pytest.skip("ss does not say whose ports they are")
    assert all("127.0.0.1" in line.split()[3] for line in own), own


@pytest.mark.long
def test_a_killed_replica_is_started_again_and_others_go_on(replicas: Server) -> None:
    response = stream(replicas)
    until(lambda: len(replicas.json("/slots")) == 1)
    lost = replicas.json("/slots")[0]["replica"]
    before = replicas.json("/health")["replicas"]
    victim = next(pid for pid, words in processes(replicas).items() if serves(pid, words, lost))
    os.kill(victim, signal.SIGKILL)
    said = response.read().decode()
    assert f"replica {lost}, which computed this answer, has ended" in said
    assert said.endswith("data: [DONE]\n\n")
    for _ in range(3):
        assert ask(replicas, QUESTION)["choices"], "the other one answers"

    def both() -> bool:
        names = replicas.json("/health")["replicas"]
        return len(names) == 2 and lost not in names

    assert len(before) == 2
    until(both, RESTART_S)


@pytest.mark.long
def test_sigterm_lets_answers_finish() -> None:
    with server("--replicas", 1, seconds=START_S) as made:
        response = stream(made, max_tokens=200)
        until(lambda: len(made.json("/slots")) == 1)
        children = processes(made)
        made.process.send_signal(signal.SIGTERM)
        assert response.read().decode().endswith("data: [DONE]\n\n")
        assert made.process.wait(SOON_S) == 0
        assert not any("Traceback" in line for line in made.lines)
        until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in children))


def stream(made: Server, **fields: Any) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", made.port, timeout=SOON_S)
    connection.request("POST", "/v1/completions", json.dumps(LONG | fields), made.headers)
    return connection.getresponse()


def processes(made: Server) -> dict[int, str]:
    """All that the server has started, with their names."""
    found = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True,
                           check=True)  # fmt: skip
    rows = [line.split(None, 2) for line in found.stdout.splitlines()]
    own, names = {made.process.pid}, {}
    for _ in rows:  # as deep as they stand
        for pid, parent, words in rows:
            if int(parent) in own:
                own.add(int(pid))
                names[int(pid)] = words
    return names


def serves(pid: int, words: str, replica: str) -> bool:
    """Whether it is this replica: its log's name has it."""
    if not words.startswith("ray::ServeReplica"):
        return False
    opened = [os.readlink(f"/proc/{pid}/fd/{each}") for each in os.listdir(f"/proc/{pid}/fd")]
    return any(replica in name for name in opened)
