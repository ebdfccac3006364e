"""Which requests does the front ask at a second replica, after a first one has refused?"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx2", reason="comes with the clients that tests ask with")

from starlette.responses import Response
from starlette.testclient import TestClient

from moesaic.core.errors import EngineEnded
from moesaic.serve.api_error import ApiError, engine_lost, engine_unavailable, json_response
from moesaic.serve.replicas.affinity import Ticket
from moesaic.serve.replicas.call import Call, Ended, Head
from moesaic.serve.replicas.forwarding import Forwarding
from moesaic.serve.replicas.front import Front
from moesaic.serve.replicas.front_app import make_front_app
from moesaic.serve.request_record import RequestRecord
from moesaic.serve.server_settings import ServerSettings

DONE = json_response({"answer": 1})
LOST = EngineEnded("the engine has ended")


class Said:
    """What a replica sends."""

    def __init__(self, answer: Response) -> None:
        self._left: list[Any] = [Head(answer.status_code, answer.raw_headers), answer.body]
        self._left.append(Ended({}))

    async def __anext__(self) -> Any:
        assert self._left, "it was read to its end, or cancelled"
        return self._left.pop(0)

    def cancel(self) -> None:
        self._left.clear()


class TwoReplicas(Front):
    """Without Ray: the first one asked gives the first answer."""

    replicas = ("one", "two")

    def __init__(self, *answers: Response | ApiError) -> None:
        super().__init__("none", ServerSettings(log="json"))
        self._answers = [a.response() if isinstance(a, ApiError) else a for a in answers]
        self.asked: list[str] = []
        self.avoided: list[str | None] = []

    def begin(self, call: Call, record: RequestRecord) -> Forwarding:
        name = self.replicas[len(self.asked)]
        self.asked.append(name)
        call.ticket = Ticket(name, lambda: None)
        return Forwarding(lambda call: Said(self._answers.pop(0)), call, record)

    def avoid(self, replica: str | None) -> None:
        self.avoided.append(replica)


def ask(front: Front) -> Any:
    app = make_front_app(front, lambda request: None)
    body = {"prompt": "Once"}
    return TestClient(app, base_url="http://localhost").post("/v1/completions", json=body)


def test_what_was_refused_before_any_work_is_asked_again() -> None:
    for refusal in (engine_unavailable("it loads", begun=False), engine_lost(LOST, begun=False)):
        front = TwoReplicas(refusal, DONE)
        answer = ask(front)
        assert (answer.status_code, answer.json()) == (200, {"answer": 1})
        assert (front.asked, front.avoided) == (["one", "two"], ["one"])


def test_what_may_have_ended_an_engine_is_not_given_to_another() -> None:
    front = TwoReplicas(engine_lost(LOST), DONE)
    answer = ask(front)
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == "the engine has ended"
    assert (front.asked, front.avoided) == (["one"], ["one"])


def test_a_second_refusal_is_the_answer() -> None:
    refusals = [engine_unavailable(f"{name} loads", begun=False) for name in ("one", "two")]
    front = TwoReplicas(*refusals)
    answer = ask(front)
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == "two loads"
    assert answer.headers["retry-after"] == "5"
    assert "x-not-begun" not in answer.headers
    assert front.avoided == ["one", "two"]
