"""Tokens that run again, for a machine that asks the brain without Python: what their routers
wanted before is handed over ahead of the pass, and what this one's want is handed back after it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moesaic.core.body import Decider


@dataclass(frozen=True, slots=True)
class PassWants:
    """The best experts of every token of a pass, [layers, tokens, top-k], whatever it uses of them.
    A token of which nothing is known has `UNUSED` everywhere."""

    ranked: NDArray[np.int64]
    scores: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class KnownWants:
    """What is known of a pass before it begins, for up to `distance` layers ahead.
    `whole`: every token runs again; `trusted`: else the brain need not judge forecasts that hold
    nothing but these."""

    wants: PassWants
    distance: int
    whole: bool
    trusted: bool


class RerunDecider(ABC):
    """A decider around `brain`, layer by layer; or, instead, for a whole pass at once."""

    brain: Decider
    # Experts used by tokens that ran again: how many had been wanted before, and how many in all.
    right = judged = 0

    @abstractmethod
    def known(self) -> KnownWants | None:
        """What tokens of the pass that has just begun wanted; None: no token runs again."""

    @abstractmethod
    def note_pass(self, wants: PassWants, right: int, judged: int) -> None:
        """The pass has ended; the counts are `right` and `judged` with what it has added."""
