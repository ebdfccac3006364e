"""A machine without a network, for the engine around it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch

from moesaic.engine.kv.kv_blocks import KVBlocks
from moesaic.machines.real.forward_pass import ForwardPass
from moesaic.models.attentions.checkpoint import Checkpoint

VOCABULARY = 97


class NoCache(SimpleNamespace):
    """Of sequences whose keys and values are nowhere."""

    has_checkpoints = has_states = False
    max_length = 64 * 8

    def __init__(self) -> None:
        super().__init__(length=lambda slot: 0, truncate=lambda slot, length: None)
        self.table = np.zeros((16, 8), dtype=np.int32)

    def changed(self, slot: int, first: int) -> None:
        """There is no copy of the table."""

    def copy_block(self, source: int, to: int, rows: int) -> None:
        """There are no rows."""

    def reaches(self, slot: int, length: int) -> bool:
        return True

    def save(self, slot: int, length: int) -> Checkpoint:
        return Checkpoint(length, {}, {})

    def begin(self, slot: int, length: int, checkpoint: Checkpoint | None = None) -> None:
        """Nothing is kept."""


class NoNetwork:
    """Every step's best token follows from its last one."""

    def __init__(self) -> None:
        self.gate, self.gate_name = SimpleNamespace(draft=0, reruns=False), "full"
        self.bytes_moved, self.reads_of_a_token = 0, 1
        self.writes_as_it_reads = True
        self.cache = NoCache()
        self.kv = KVBlocks(self.cache, blocks=128, least=16)

    def step(self, work: ForwardPass) -> torch.Tensor:
        logits = torch.zeros(len(work.pieces), VOCABULARY)
        for row, each in enumerate(work.pieces):
            logits[row, (each.tokens[-1] + 1) % VOCABULARY] = 1.0
        return logits

    def free_slot(self, slot: int) -> None:
        self.kv.drop(slot)

    def placed(self, work: ForwardPass) -> ForwardPass:
        return work

    def refuses(self, work: ForwardPass) -> str | None:
        return "it does not submit"
