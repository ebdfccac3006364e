"""Does a stream begin before its prompt is read, and is it kept alive by the clock while nothing of
an answer can be shown yet?"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from typing import cast

import pytest
from paced import PacedEngine
from scripted import NAME, ScriptedServer, scripted_server
from servers import until
from three_apis import NAMES, Said, api, raw_stream, streamed

from moesaic.serve.server_settings import ServerSettings

KEEP_ALIVE_S = 0.05
ALIVE = b": keep-alive\n"
FIRST = {
    "chat": b'"role":"assistant"',
    "responses": b"response.in_progress",
    "messages": b"message_start",
}
# A call's name is shown when it is complete, and a number when it has ended.
LONG = "look" * 500
NUMBER = "7" * 2000
WITHHELD = {
    "qwen3": (
        f'<tool_call>\n{{"name": "{LONG}", "arguments": {{"path": "a.txt"}}}}\n</tool_call>',
        (LONG, '{"path": "a.txt"}'),
    ),
    "qwen3.5": (
        f"</think>\n\n<tool_call>\n<function=add>\n<parameter=number>\n{NUMBER}\n</parameter>\n"
        "</function>\n</tool_call>",
        ("add", f'{{"number": {NUMBER}}}'),
    ),
}
NUMBERS = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
TOOLS = {"qwen3": None, "qwen3.5": [{"name": "add", "parameters": NUMBERS}]}


@pytest.fixture(scope="module", params=WITHHELD)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def paced(family: str) -> Iterator[ScriptedServer]:
    settings = ServerSettings(model_names=(NAME,), keep_alive_s=KEEP_ALIVE_S, log="json")
    with scripted_server(family, settings=settings, kind=PacedEngine) as made:
        made.engine.script = lambda prompt: WITHHELD[family][0]
        yield made


@contextmanager
def writing(engine: PacedEngine) -> Iterator[None]:
    """Tokens come one by one, much more often than comments do."""
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(KEEP_ALIVE_S / 20):
            engine.write()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def read_until(response: HTTPResponse, word: bytes) -> bytes:
    data = b""
    while word not in data:
        line = response.readline()
        assert line, f"the stream has ended: {data!r}"
        data += line
    return data


@pytest.mark.parametrize("name", NAMES)
def test_silence_is_filled_before_the_prompt_is_read_and_while_a_call_is_withheld(
    paced: ScriptedServer, family: str, name: str
) -> None:
    engine = cast(PacedEngine, paced.engine)
    asked = api(name, TOOLS[family])
    with raw_stream(paced.address, asked.path, asked.asked) as response:
        assert response.status == 200, "of a stream whose prompt has not been read"
        begun = read_until(response, FIRST[name])
        for _ in range(3):
            begun += read_until(response, ALIVE)
        until(lambda: bool(engine.answers))
        engine.write(40)  # the call has begun, and is not known to be one
        withheld = engine.answers[-1].left
        with writing(engine):
            before = len(withheld)
            silent = b"".join(read_until(response, ALIVE) for _ in range(4))
            assert withheld, "a call that ended is not withheld"
            assert before - len(withheld) > 8, "tokens came between comments"
        after_call = silent.rpartition(b"data: ")[2]
        assert after_call.count(ALIVE) >= 3, "comments with no event between them"
        engine.write(len(withheld))
        engine.answers.clear()
        said = streamed(name, begun + silent + response.read())
    assert said == Said("", "", [WITHHELD[family][1]])
    assert json.loads(said.calls[0][1])
