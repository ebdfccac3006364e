"""Does the server say what its engine knows, to clients that may ask, and write it into files?"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from servers import CALL, SOON_S, Server, server, until

WIDE = os.environ | {"COLUMNS": "200"}
WRITING = {"prompt": "Once upon a time", "max_tokens": 900, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def accelerated() -> Iterator[Server]:
    options = ("--accelerator", "emulated", "--cache-ratio", 0.25, "--api-key", "open sesame")
    with server(*options, "--log", "json") as made:
        yield made


def moesaic(*words: str) -> str:
    call = [sys.executable, "-c", CALL, *words]
    done = subprocess.run(call, capture_output=True, text=True, check=True, env=WIDE)
    return done.stdout


def ask(made: Server, path: str, body: object = None) -> tuple[int, bytes]:
    return made.ask(path, body, {"x-api-key": "open sesame"})


def as_json(made: Server, path: str, body: object = None) -> Any:
    status, data = ask(made, path, body)
    assert status == 200, data
    return json.loads(data)


@contextmanager
def writing(made: Server, client: str = "") -> Iterator[None]:
    """An answer is written as long as this is open."""
    connection = http.client.HTTPConnection("127.0.0.1", made.port, timeout=SOON_S)
    headers = {"x-api-key": "open sesame", "x-client": client, "x-request-id": "the-story"}
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            connection.request("POST", "/v1/completions", json.dumps(WRITING | {"stream": True}),
                               headers)  # fmt: skip
            response = connection.getresponse()
            while not stop.is_set() and response.readline():
                pass
            connection.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        connection.close()


def snapshot_of(made: Server, kind: str = "decode") -> dict[str, Any]:
    """While an answer is written."""
    found: dict[str, Any] = {}

    def noted() -> bool:
        found.update(as_json(made, "/insight"))
        return bool(found["step"]) and found["step"]["kind"] == kind

    until(noted)
    return found


def test_every_expert_of_the_last_step_has_its_reason(accelerated: Server) -> None:
    about = as_json(accelerated, "/insight/model")
    assert (about["layers"], about["experts"], about["top_k"]) == (10, 32, 4)
    assert about["accelerator"]["kind"] == "emulated"
    assert about["lanes"] == ["gpu", "cpu", "link"]
    assert about["policies"]["schedule"] == "best-split"
    assert about["slots"] == 80
    with writing(accelerated, "a client"):
        found = snapshot_of(accelerated)
        one = as_json(accelerated, "/insight/layers/7")
    assert [each["layer"] for each in found["layers"]] == list(range(10))
    for layer in [*found["layers"], one]:
        assert layer["predicted_us"] > 0
        assert layer["measured_us"] > 0
        assert layer["active"] == len(layer["experts"]) == 4
        for expert in layer["experts"]:
            where = expert["options"]
            assert expert["why"].startswith("It was ")
            assert expert["why"].startswith("It was in GPU memory") == expert["resident"]
            assert where["cpu_us"] is not None
            assert (where["gpu_us"] is None) != (where["link_us"] is None)
    assert one["layer"] == 7
    assert len(found["resident"]) == 10
    assert 0 < sum(map(len, found["resident"])) <= 80
    assert {each["lane"] for each in found["lanes"]} == {"gpu", "cpu", "link"}
    assert found["lanes"][0]["busy_s"] > 0
    (running,) = [each for each in found["kv"]["conversations"] if each["state"] == "running"]
    assert (running["request_id"], running["client"]) == ("the-story", "a client")
    assert running["blocks"] >= 1


def test_hits_are_beside_those_of_other_caches(accelerated: Server) -> None:
    with writing(accelerated):
        until(lambda: as_json(accelerated, "/insight")["hits"]["window_steps"] > 8)
        hits = as_json(accelerated, "/insight")["hits"]
    assert 0 < hits["actual"] < 1
    assert 0 < hits["lru"] <= hits["belady"] < 1
    assert hits["what_if_ratio"] is None


def test_without_an_accelerator_it_says_what_one_would_hit(shared: Server) -> None:
    with writing(shared):
        until(lambda: shared.json("/insight")["hits"]["window_steps"] > 8)
        found = shared.json("/insight")
    hits = found["hits"]
    assert hits["actual"] is None
    assert hits["what_if_ratio"] == 0.25
    assert 0 < hits["lru"] <= hits["belady"] < 1
    assert found["lanes"] == [{"lane": "cpu", "busy_s": found["lanes"][0]["busy_s"], "bytes": None}]
    assert shared.json("/insight/model")["accelerator"] is None
    experts = found["layers"][0]["experts"]
    assert all(each["why"].startswith("There is no accelerator") for each in experts)


def test_the_stream_goes_on_with_the_steps(accelerated: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", accelerated.port, timeout=SOON_S)
    connection.request("GET", "/insight/stream", headers={"x-api-key": "open sesame"})
    response = connection.getresponse()
    assert response.getheader("content-type", "").startswith("text/event-stream")
    numbers: list[int] = []
    with writing(accelerated):
        while len(numbers) < 3:
            line = response.readline().decode().strip()
            if line.startswith("data: "):
                step = json.loads(line.removeprefix("data: "))["step"]
                numbers += [] if step is None else [step["number"]]
    connection.close()
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("path", ["/insight", "/insight/model", "/insight/stream"])
def test_it_is_as_closed_as_the_rest(accelerated: Server, path: str) -> None:
    assert accelerated.get(path)[0] == 401
    assert accelerated.ask("/insight/capture", {"kind": "routing"})[0] == 401


def test_captured_routing_is_replayed_on_another_machine(
    accelerated: Server, tmp_path: Path
) -> None:
    with writing(accelerated):
        status, data = ask(accelerated, "/insight/capture", {"kind": "routing", "steps": 40})
    assert status == 200, data
    file = tmp_path / "routing.moet"
    file.write_bytes(data)
    assert "decode_tokens" in moesaic("trace", "info", str(file))
    command = ("simulate", "--model", "moesaic-20m", "--machine", "h200-emr16")
    assert "recorded while moesaic-20m was served" in moesaic(*command, "--trace", str(file))


def test_captured_spans_are_a_chrome_trace(shared: Server) -> None:
    with writing(shared):
        status, data = shared.ask("/insight/capture", {"kind": "perfetto", "steps": 5})
    assert status == 200
    events = json.loads(data)["traceEvents"]
    assert [e["name"] for e in events if e.get("cat") == "step"] == [f"step {n}" for n in range(5)]
    named = {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert {"step", "cpu", "engine"} <= named


def test_one_capture_runs_at_a_time(shared: Server) -> None:
    first: list[int] = []
    body = {"kind": "perfetto", "steps": 3, "wait_s": SOON_S}

    def wait() -> None:
        while first[-1:] in ([], [409]):  # one of those below may be before it
            first.append(shared.ask("/insight/capture", body)[0])

    waiting = threading.Thread(target=wait)
    waiting.start()
    quick = {"kind": "perfetto", "wait_s": 0.05}
    until(lambda: shared.ask("/insight/capture", quick)[0] == 409)
    assert b"another capture is under way" in shared.ask("/insight/capture", quick)[1]
    with writing(shared):
        waiting.join()
    assert first[-1] == 200
    until(lambda: not shared.json("/slots"))
    status, data = shared.ask("/insight/capture", quick)
    assert status == 400
    assert b"no step ran while the capture waited" in data


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"kind": "video"}, b"kind"),
        ({"kind": "routing", "steps": 0}, b"steps is 0"),
        ({"kind": "routing", "steps": 1001}, b"between 1 and 1000"),
        ({"kind": "routing", "wait_s": 0}, b"wait_s is 0"),
        ({"steps": 3}, b"kind"),
    ],
)
def test_impossible_captures_are_refused(shared: Server, body: object, word: bytes) -> None:
    status, data = shared.ask("/insight/capture", body)
    assert status == 400
    assert word in data


def test_a_layer_that_is_not_there_is_named(shared: Server) -> None:
    status, data = shared.get("/insight/layers/10")
    assert status == 404
    assert b"numbers 0 to 9" in data


def test_lanes_and_experts_are_counted(accelerated: Server, shared: Server) -> None:
    with writing(accelerated):
        snapshot_of(accelerated)
    _, data = ask(accelerated, "/metrics")
    text = data.decode()
    for lane in ("gpu", "cpu", "link"):
        assert f'moesaic_busy_seconds_total{{lane="{lane}"}} ' in text
    found = {
        line.split()[0]: float(line.split()[1])
        for line in text.splitlines()
        if line.startswith("moesaic_expert_")
    }
    hits, wanted = found["moesaic_expert_hits_total"], found["moesaic_expert_wanted_total"]
    assert 0 < hits < wanted
    assert found["moesaic_expert_hit_ratio"] == pytest.approx(hits / wanted)
    alone = shared.get("/metrics")[1].decode()
    assert 'moesaic_busy_seconds_total{lane="cpu"} ' in alone
    assert 'lane="gpu"' not in alone
    assert "moesaic_expert_hits_total" not in alone
