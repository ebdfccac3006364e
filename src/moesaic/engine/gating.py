"""The engine's side of a gate policy: checks its answers, computes the model's confidence."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from moesaic.core.confidence import Confidence
from moesaic.machines.real.forward_pass import ForwardPass
from moesaic.policies.gate.base import Gate, GateStep


def gate_step(work: ForwardPass) -> GateStep:
    """The pass as gates see it: tokens, prompts and attempts of every sequence."""
    return GateStep(
        tuple(len(each.tokens) for each in work.pieces),
        tuple(each.of_prompt for each in work.pieces),
        tuple(each.attempt for each in work.pieces),
    )


def expert_counts(gate: Gate, step: GateStep) -> NDArray[np.int64] | None:
    """Experts per token of a pass; None where every token uses all."""
    counts = gate.experts_per_token(step)
    if counts is None or (counts == gate.top_k).all():
        return None
    tokens, name = sum(step.tokens), type(gate).__name__
    assert counts.shape == (tokens,), f"{name}: {counts.shape} counts for {tokens} tokens"
    assert ((counts >= 1) & (counts <= gate.top_k)).all(), f"{name}: a count not in 1 to top-k"
    return np.ascontiguousarray(counts, dtype=np.int64)


def rejected(gate: Gate, step: GateStep, confidence: Confidence) -> NDArray[np.bool_]:
    """Which sequences must run their last token again. Logits that are no numbers are not run
    again: that is the model's failure, and the request's end."""
    again = gate.judge(step, confidence) & np.isfinite(confidence.top)
    tried = np.asarray(step.attempts)[again]
    assert (tried < gate.top_k).all(), f"{type(gate).__name__} rejects a token again and again"
    return again


def confidence_of(logits: torch.Tensor) -> Confidence:
    """The confidence of every row of logits [rows, vocabulary]."""
    with torch.inference_mode():
        probabilities = logits.float().softmax(dim=-1)
        best = probabilities.topk(min(2, probabilities.shape[1]), dim=-1).values
        entropy = torch.special.entr(probabilities).sum(dim=-1)
        return Confidence(
            best[:, 0].cpu().numpy(),
            (2 * best[:, 0] - best.sum(dim=-1)).cpu().numpy(),
            entropy.cpu().numpy(),
        )
