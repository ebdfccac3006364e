"""The compiled brain for a machine with a native conductor, as long as its state stays there."""

from __future__ import annotations

from moesaic.core.native_brain import NativeBrain
from moesaic.policies.brain import Brain
from moesaic.policies.brain.c_functions import native_brain


class NativeSource:
    """Gives the same value until the state moves; steps have at most so many tokens."""

    def __init__(self, brain: Brain, tokens: int, ranks: int) -> None:
        self._brain, self._tokens, self._ranks = brain, tokens, ranks
        self._made: NativeBrain | None = None

    def __call__(self) -> NativeBrain | None:
        brain = self._brain
        if not brain.runs_natively:
            return None
        if self._made is None or self._made.state != brain.state.address:
            self._made = native_brain(brain, self._tokens, self._ranks)
        return self._made
