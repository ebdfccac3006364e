"""Does compiling one request's grammar keep others waiting no longer than it must?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from engines import greedy

from moesaic.engine.process import messages as m
from moesaic.engine.process.caller import Caller
from moesaic.engine.process.server import EngineServer, Serving
from moesaic.engine.process.step_record import StepRecord
from moesaic.engine.request import Request

SOON_S = 60


class Compiling:
    """An admission whose grammars are compiled when the test lets them; some are known."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.begun, self.go_on, self.last = Event(), Event(), Event()

    def is_quick(self, form: str | None) -> bool:
        return form is None or "known" in form

    def request(self, submit: m.Submit) -> Request:
        self.asked.append(submit.id)
        if not self.is_quick(submit.sampling.form):
            self.begun.set()
            assert self.go_on.wait(SOON_S)
        if submit.id == 3:
            self.last.set()
        raise ValueError("no model has to be here")


@pytest.fixture
def compiling() -> Iterator[Compiling]:
    made = Compiling()
    yield made
    made.go_on.set()


@pytest.fixture
def server(tmp_path: Path, compiling: Compiling, monkeypatch: pytest.MonkeyPatch) -> EngineServer:
    """Its thread does not run: the test does what it would do."""
    made = EngineServer(tmp_path, StepRecord.create(tmp_path / "steps"))
    serving: Any = Serving(None, compiling, 99, 4)  # type: ignore[arg-type]
    monkeypatch.setattr(made, "_engine", serving)
    monkeypatch.setattr(made, "_send", lambda *_: None)
    return made


def submit(server: EngineServer, caller: Caller, number: int, form: str) -> None:
    params = greedy(5)
    object.__setattr__(params, "form", form)
    server._handle(caller, m.Submit(number, [1], m.SamplingFields.of(params, 5), 5))


def test_a_cancelled_request_has_no_grammar_compiled(
    server: EngineServer, compiling: Compiling
) -> None:
    caller = Caller(b"a", 1)
    submit(server, caller, 1, "slow")
    assert compiling.begun.wait(SOON_S)
    for number in (2, 3):
        submit(server, caller, number, f"slow {number}")
    server._handle(caller, m.Cancel(2))
    compiling.go_on.set()
    assert compiling.last.wait(SOON_S)
    assert compiling.asked == [1, 3]


def test_a_known_grammar_waits_for_no_other(server: EngineServer, compiling: Compiling) -> None:
    caller = Caller(b"a", 1)
    submit(server, caller, 1, "slow")
    assert compiling.begun.wait(SOON_S)
    submit(server, caller, 2, "known")
    assert compiling.asked == [1, 2]
