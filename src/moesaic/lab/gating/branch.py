"""A text being written under several rules that have decided alike so far."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from moesaic.engine.request import Request
from moesaic.lab.evaluation.items import Question
from moesaic.lab.gating.outcome import Outcome
from moesaic.lab.gating.rules import Rule
from moesaic.policies.gate.reuse import ROUTE_AGAIN


@dataclass(slots=True, eq=False)
class Subject:
    """A question, and what the full model says to it: shared by all branches."""

    question: Question
    tokens: list[int] = field(default_factory=list)  # of the full model's answer
    # log-probabilities of every token's successor, [vocabulary] each; only where divergence is
    # measured. They are dropped with the question.
    expected: list[torch.Tensor] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Branch:
    subject: Subject
    rules: tuple[Rule, ...]
    request: Request
    slot: int  # of the KV cache
    big: bool = False  # the last token runs with all experts next
    decoded: int = 0  # tokens that stood
    fallbacks: int = 0
    divergence: float = 0.0  # summed over decoded tokens

    @property
    def full(self) -> bool:
        return self.rules[0].full

    @property
    def reuse(self) -> str:
        """Of the next pass. The rules of a branch whose token runs again agree on it."""
        return self.rules[0].reuse if self.big else ROUTE_AGAIN

    @property
    def experts(self) -> int | None:
        """Of the next pass; None: all."""
        return None if self.big or self.full else self.rules[0].k


def outcomes(branch: Branch) -> list[Outcome]:
    """Of a finished branch."""
    question, said = branch.subject.question, branch.request.completion()
    text = said.text or ""
    right = question.judge(text).right
    return [
        Outcome(
            question.item,
            question.group,
            rule,
            right,
            text,
            said.tokens,
            branch.decoded,
            branch.fallbacks,
            branch.divergence,
        )
        for rule in branch.rules
    ]
