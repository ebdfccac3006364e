"""What a cheaper way of computing the same model costs: the next-token distributions of two runs
over the same text, compared. Knows logits only, not their origin.

KL(reference || other) is in nats per token. All sums are in fp64, so that differences far below
bf16's own are real; a long text comes in chunks, of which only one number per token is kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from moesaic.core.errors import ImpossibleSetting

_ROWS = 64  # tokens compared at a time: fp64 copies of a whole chunk could be gigabytes


@dataclass(frozen=True, slots=True)
class Quality:
    tokens: int
    mean_kl: float
    p99_kl: float  # the smallest that 99 % of the tokens do not exceed
    same_top1: float  # share of the tokens for which both like the same next token best
    reference_perplexity: float
    other_perplexity: float


def compare(reference: torch.Tensor, other: torch.Tensor, targets: torch.Tensor) -> Quality:
    """Logits [n, vocabulary] of both, and the token that really came next, [n]."""
    comparison = LogitsComparison()
    comparison.add(reference, other, targets)
    return comparison.result()


class LogitsComparison:
    """The same, chunk by chunk."""

    def __init__(self) -> None:
        self._divergences: list[torch.Tensor] = []
        self._same_top1 = 0
        self._reference_loss = 0.0
        self._other_loss = 0.0

    def add(self, reference: torch.Tensor, other: torch.Tensor, targets: torch.Tensor) -> None:
        assert reference.shape == other.shape, f"{reference.shape} is not {other.shape}"
        assert targets.shape == reference.shape[:1], f"{len(reference)} tokens, {targets.shape}"
        chunks = zip(*(each.split(_ROWS) for each in (reference, other, targets)), strict=True)
        for reference_rows, other_rows, target_rows in chunks:
            self._add_rows(reference_rows, other_rows, target_rows)

    def result(self) -> Quality:
        divergences = torch.cat(self._divergences or [torch.empty(0)])
        tokens = len(divergences)
        if not tokens:
            raise ImpossibleSetting(
                "no tokens to compare: quality is measured on predicted tokens, and a text needs "
                "at least two for one of them to be predicted; give a longer one"
            )
        return Quality(
            tokens=tokens,
            mean_kl=divergences.mean().item(),
            p99_kl=divergences.kthvalue(math.ceil(tokens * 99 / 100)).values.item(),
            same_top1=self._same_top1 / tokens,
            reference_perplexity=_perplexity(self._reference_loss, tokens),
            other_perplexity=_perplexity(self._other_loss, tokens),
        )

    def _add_rows(
        self, reference: torch.Tensor, other: torch.Tensor, targets: torch.Tensor
    ) -> None:
        self._same_top1 += int((reference.argmax(-1) == other.argmax(-1)).sum())
        ours, theirs = (logits.double().log_softmax(-1) for logits in (reference, other))
        self._divergences.append(_divergence(ours, theirs).cpu())
        chosen = targets[:, None]
        self._reference_loss -= ours.gather(1, chosen).sum().item()
        self._other_loss -= theirs.gather(1, chosen).sum().item()


def _divergence(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """KL per row of log-probabilities. A token that is impossible to `ours` adds nothing, one
    that is impossible to `theirs` alone makes it infinite."""
    terms = torch.where(ours == -math.inf, 0.0, ours.exp() * (ours - theirs))
    return terms.sum(-1).clamp_(min=0.0)  # never negative but for rounding


def _perplexity(loss: float, tokens: int) -> float:
    try:
        return math.exp(loss / tokens)
    except OverflowError:
        return math.inf
