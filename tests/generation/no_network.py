"""A machine without a network, for the engine around it."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from moesaic.machines.real.forward_pass import ForwardPass

VOCABULARY = 97


class NoNetwork:
    """Every step's best token follows from its last one."""

    def __init__(self) -> None:
        self.gate, self.gate_name = SimpleNamespace(draft=0, reruns=False), "full"
        self.bytes_moved, self.reads_of_a_token = 0, 1
        self.cache = SimpleNamespace(
            length=lambda slot: 0, least_length=lambda slot: 0, truncate=lambda slot, length: None
        )

    def step(self, work: ForwardPass) -> torch.Tensor:
        logits = torch.zeros(len(work.pieces), VOCABULARY)
        for row, each in enumerate(work.pieces):
            logits[row, (each.tokens[-1] + 1) % VOCABULARY] = 1.0
        return logits

    def free_slot(self, slot: int) -> None:
        pass

    def placed(self, work: ForwardPass) -> ForwardPass:
        return work

    def refuses(self, work: ForwardPass) -> str | None:
        return "it does not submit"
