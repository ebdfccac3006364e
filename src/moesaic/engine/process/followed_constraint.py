"""The caller's side of a constraint on a text, which the engine follows."""

from __future__ import annotations

from moesaic.engine.completion import FinishReason
from moesaic.engine.sampling.constraint import Constraint


class FollowedConstraint(Constraint):
    """The caller knows of it how the engine has ended the text."""

    def __init__(self) -> None:
        self._ended: FinishReason | None = None

    def note(self, ended: FinishReason | None) -> None:
        """Before the token with which the engine has ended the text; None: it goes on."""
        self._ended = ended

    @property
    def complete(self) -> bool:
        return self._ended == "stop"

    @property
    def accepting(self) -> bool:
        return self._ended != "incomplete"

    def advance(self, token: int) -> None:
        pass
