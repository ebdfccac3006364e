"""Logits of a text as the model would give them while writing it: what a gate changes shows only
there, because prompts are read with all experts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moesaic.engine.runner import Runner
from moesaic.machines.real.forward_pass import ForwardPass, Piece
from moesaic.policies.gate import FULL


def read(runner: Runner, slot: int, tokens: Sequence[int]) -> torch.Tensor:
    """What should come after each of the next tokens of a sequence, [tokens, vocabulary]: all at
    once with gate `full` and with drafts, whose text is the full model's; else one after another,
    each run again where the gate rejects it."""
    if runner.gate_name == FULL or runner.gate.draft:
        return runner.step(ForwardPass([Piece(slot, tokens, all_logits=True)]))
    logits = [runner.settled_step(Piece(slot, [token], prompt=False)) for token in tokens]
    return torch.cat(logits)
