"""Twenty seconds of `python -m benchmarks.soak`: do 64 clients get their own answers, the same as
alone, while others leave or send nonsense?"""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("starlette")

from benchmarks.http_exchange import Exchange
from benchmarks.soak import Found, complaints, soak
from benchmarks.soak_requests import Question, Said, questions, said

SECONDS, CLIENTS = 20, 64


def test_sixty_four_clients_get_their_own_answers() -> None:
    found = soak(CLIENTS, SECONDS, questioned=40, threads=1)
    assert complaints(found) == []
    assert found.answers >= CLIENTS
    assert found.left > 5
    assert found.refused > 2
    assert found.differing == 0


def test_what_is_lost_or_cut_is_no_answer() -> None:
    question = Question("/v1/completions", {"stream": True})
    events = b'data: {"choices": [{"text": "a", "finish_reason": "length"}]}\n\n'
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(events)
    whole = Exchange(0.0, bytearray(head + events), [(1.0, len(head + events))], ended=True)
    assert said(question, whole) == Said("a", "length", 0)
    assert said(question, replace(whole, ended=False)) is None
    assert said(question, replace(whole, raw=bytearray(head.replace(b"200", b"503")))) is None
    failed = events.replace(b'"choices"', b'"error": {"message": "lost"}, "choices"')
    assert said(question, replace(whole, raw=bytearray(head + failed))) is None


def test_memory_that_grows_is_complained_of() -> None:
    flat = [(float(second), 300_000_000, 500_000_000) for second in range(60)]
    assert complaints(Found(memory=flat)) == []
    growing = [(at, front + int(at) * 2_000_000, engine) for at, front, engine in flat]
    (complaint,) = complaints(Found(memory=growing))
    assert "memory of the front grew" in complaint
    assert complaints(Found(memory=flat, lost=["a"], wrong=["b"])) == ["lost: a", "wrong: b"]


def test_questions_are_all_different_and_of_every_kind() -> None:
    made = questions(120)
    assert len({str(each.body) for each in made}) == 120
    assert {each.path for each in made} == {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
    }
    assert {each.streams for each in made} == {True, False}
    assert any("seed" in each.body for each in made)
