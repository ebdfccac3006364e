"""Does `moesaic batch` answer as the server does, lose nothing when it is ended, and say how it
goes on?"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from batches import ITEMS, SMALL, TEXT, Batch, answers, question, request, written
from click.testing import CliRunner, Result
from servers import Server, engines_of, server, until

from moesaic.cli.command_line import app

INVARIANT = "--batch-invariant"  # so that both answer alike, whatever runs beside
CHOICES = {"n": 2, "temperature": 0.8, "seed": 3}
BROKEN = 4  # of `REQUESTS`
REQUESTS = [
    *(question(number) for number in range(16)),
    question(16, logprobs=True, top_logprobs=2),
    question(17) | {"custom_id": "drawn", "body": question(17)["body"] | CHOICES},
    request(18, TEXT, prompt=["Once upon", "A dog"], max_tokens=8, temperature=0, echo=True),
    request(19, ITEMS, input="Tom has 3 pens.", max_output_tokens=8, temperature=0),
    request(20, messages=[]),
    request(21, TEXT, prompt="Once", max_tokens=0),
    request(22, ITEMS, input=[]),
    request(23, messages="hello"),
]


@pytest.fixture(scope="module")
def asked() -> Iterator[Server]:
    with server(INVARIANT) as made:
        yield made


def run(*words: object) -> Result:
    """The command in this process, which has imported what it needs."""
    result = CliRunner().invoke(app, ["batch", *map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def same_words(value: Any) -> Any:
    """Without what is new in every answer."""
    if isinstance(value, dict):
        new = ("id", "created", "created_at")
        return {name: same_words(each) for name, each in value.items() if name not in new}
    return [same_words(each) for each in value] if isinstance(value, list) else value


def test_a_batch_that_is_ended_again_and_again_answers_as_the_server_does(
    tmp_path: Path, asked: Server
) -> None:
    """Killed, then with its engine killed and interrupted, then to the end."""
    source, out = written(tmp_path / "in.jsonl", REQUESTS), tmp_path / "out.jsonl"
    killed = Batch(source, out, INVARIANT)
    until(lambda: len(answers(out)) >= BROKEN + 3)
    killed.process.kill()
    assert killed.status() == -signal.SIGKILL
    before = len(answers(out))

    interrupted = Batch(source, out, INVARIANT)
    until(lambda: len(answers(out)) >= before + 1)
    assert f"{before} of {len(REQUESTS)} are answered already" in interrupted.lines
    (engine,) = engines_of(interrupted.process.pid)
    os.kill(engine, signal.SIGKILL)
    before = len(answers(out))
    until(lambda: len(answers(out)) >= before + 1)
    interrupted.process.send_signal(signal.SIGINT)
    assert interrupted.status() == 130, interrupted.lines
    kept = f"{len(answers(out))} of {len(REQUESTS)} are answered and kept in {out}"
    assert any(line.startswith(kept) for line in interrupted.lines), interrupted.lines
    assert not any("Traceback" in line for line in interrupted.lines)

    summary = json.loads(run(source, "-o", out, *SMALL, INVARIANT, "--json").stdout)
    assert summary["requests"] == len(REQUESTS)
    assert summary["answered_before"] + summary["answered"] == len(REQUESTS)
    found = {each["custom_id"]: each for each in answers(out)}
    assert len(answers(out)) == len(found) == len(REQUESTS)
    for each in REQUESTS:
        answer = found[each["custom_id"]]
        assert set(answer) == {"id", "custom_id", "response", "error"}
        assert answer["error"] is None
        status, body = asked.ask(each["url"], each["body"])
        assert answer["response"]["status_code"] == status
        assert same_words(answer["response"]["body"]) == same_words(json.loads(body))
    refusals = [each for each in found.values() if each["response"]["status_code"] == 400]
    assert len(refusals) == BROKEN


def test_a_finished_batch_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No model is loaded. Streams are refused line by line."""
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    written(source, [question(1, stream=True), question(2, max_tokens=3)])
    first = json.loads(run(source, "-o", out, *SMALL, "--json").stdout)
    assert (first["answered"], first["refused"]) == (2, 1)
    assert first["generated_tokens"] == 3
    assert first["sequences"] == 32
    before = out.read_bytes()
    assert b"stream is true, and a batch writes whole answers" in before
    monkeypatch.setattr("moesaic.cli.run.batch.load_engine", None)
    said = run(source, "-o", out, *SMALL)
    assert "2 requests are answered" in said.stderr
    assert said.stdout == ""
    assert out.read_bytes() == before


@pytest.mark.long
def test_a_batch_that_is_killed_at_any_moment_loses_nothing(tmp_path: Path) -> None:
    """Thirty times, in every phase of the command."""
    lines = [question(number) for number in range(400)]
    source, out = written(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    chance = random.Random(1)
    for _ in range(30):
        killed = Batch(source, out, "--max-sequences", 8)
        enough = len(answers(out)) + chance.randrange(8)
        until(lambda: len(answers(out)) >= enough or killed.process.poll() is not None)  # noqa: B023
        killed.process.kill()
        killed.status()
    last = Batch(source, out)
    assert last.status() == 0, last.lines
    found = [each["custom_id"] for each in answers(out)]
    assert sorted(found) == sorted(each["custom_id"] for each in lines)
