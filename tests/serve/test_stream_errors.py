"""Does an error in a running stream reach the published clients as an error of theirs?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

import anthropic
import openai
import pytest
from family_templates import answer
from openai.types.responses import ResponseStreamEvent
from paced import PacedEngine
from pydantic import TypeAdapter
from scripted import ScriptedServer, scripted_server
from servers import events_of, until
from three_apis import NAMES, api, published_stream, raw_stream

from moesaic.core.errors import EngineEnded, EngineFailed

FAMILY = "qwen3"
SCRIPT = answer(FAMILY, "Now.", "I look into the first one.", ("look", {"path": "a.txt"}))
FAILURES = {
    "it failed": (EngineFailed("the step failed on layer 3"), "the step failed on layer 3"),
    "it died": (EngineEnded("the engine was ended by SIGKILL. Its log:\nsecret"), "SIGKILL"),
    "a mistake of ours": (ZeroDivisionError("secret"), "its log says why"),
}
CLASSES = {
    "chat": openai.APIError,
    "responses": openai.APIError,
    "messages": anthropic.APIStatusError,
}


@pytest.fixture(scope="module")
def paced() -> Iterator[ScriptedServer]:
    with scripted_server(FAMILY, kind=PacedEngine) as made:
        made.engine.script = lambda prompt: SCRIPT
        yield made


def engine_of(made: ScriptedServer) -> PacedEngine:
    return cast(PacedEngine, made.engine)


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("written", [0, 4, 12, 30])
@pytest.mark.parametrize("name", NAMES)
def test_the_published_client_raises(
    paced: ScriptedServer, name: str, written: int, failure: str
) -> None:
    """Before the first token, in a thought, in text and in a call."""
    error, words = FAILURES[failure]
    engine = engine_of(paced)
    stream = published_stream(name, paced.address, api(name).asked)
    until(lambda: bool(engine.answers))
    engine.write(written)
    engine.fail(error)
    with pytest.raises(CLASSES[name], match=words) as raised:
        for _ in stream:
            pass
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("written", [0, 4, 12, 30])
def test_a_response_that_fails_says_so_before_its_stream_ends(
    paced: ScriptedServer, written: int
) -> None:
    asked, engine = api("responses"), engine_of(paced)
    with raw_stream(paced.address, asked.path, asked.asked) as response:
        until(lambda: bool(engine.answers))
        engine.write(written)
        engine.fail(EngineFailed("the step failed"))
        events = [json.loads(data) for _, data in events_of(response.read())]
    adapter = TypeAdapter[Any](ResponseStreamEvent)
    for event in events:
        adapter.validate_python(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    failed, last = events[-2:]
    assert (failed["type"], last["type"]) == ("response.failed", "error")
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "the step failed"}
    statuses = [item["status"] for item in failed["response"]["output"]]
    assert "in_progress" not in statuses
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert len(done) == len(statuses), "each item that has begun has an end"


@pytest.mark.parametrize("name", NAMES)
def test_other_streams_go_on(paced: ScriptedServer, name: str) -> None:
    asked, engine = api(name), engine_of(paced)
    with raw_stream(paced.address, asked.path, asked.asked) as kept:
        until(lambda: bool(engine.answers))
        with raw_stream(paced.address, asked.path, asked.asked) as lost:
            until(lambda: len(engine.answers) > 1)
            engine.fail(EngineFailed("the step failed"))
            assert b"the step failed" in lost.read()
        engine.write(1000)
        engine.answers.clear()
        assert b"the step failed" not in kept.read()
