"""A scripted engine that writes when a test says so, and that fails when a test says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scripted import InstantEngine

from moesaic.engine.batcher_thread import Callback
from moesaic.engine.request import Request
from moesaic.engine.sampling.sampled import Sampled


@dataclass(slots=True)
class Answer:
    """What a request is answered with, as far as it was not written yet."""

    request: Request
    callback: Callback
    left: list[int]


class PacedEngine(InstantEngine):
    """Until `write` is called, a request is one whose prompt is being read."""

    def _begin(self, end: str) -> None:
        super()._begin(end)
        self.answers: list[Answer] = []

    def _run(self, request: Request, callback: Callback, answer: Sequence[int]) -> None:
        self.answers.append(Answer(request, callback, [*answer]))

    def write(self, tokens: int = 1) -> None:
        """The next tokens of the newest answer, as far as it has some."""
        answer = self.answers[-1]
        for token in answer.left[:tokens]:
            answer.callback(answer.request.accept(Sampled(token, -0.5, ())))
        del answer.left[:tokens]

    def fail(self, error: Exception) -> None:
        """The newest answer ends with this error."""
        self.answers.pop().callback(error)
