"""The routed experts of a checkpoint, one at a time, in either layout.

Published files have three matrices per expert (`experts.7.gate_proj.weight`); newer libraries
may save a layer's experts stacked: `experts.gate_up_proj` [experts, 2 * intermediate, hidden] and
`experts.down_proj` [experts, hidden, intermediate].
"""

from __future__ import annotations

from collections.abc import Iterator

from moesaic.core.routing import ExpertId
from moesaic.kernels.base import ExpertWeights
from moesaic.models.architecture import Architecture
from moesaic.models.checkpoint import Checkpoint
from moesaic.models.families import RUNNABLE


def moe_prefix(checkpoint: Checkpoint, architecture: Architecture, layer: int) -> str:
    """Where the block of this decoder layer is. If it is nowhere, the published name, so that
    the error names that."""
    names = RUNNABLE[architecture.spec.family].moe_names
    prefixes = [f"model.layers.{layer}.{name}" for name in names]
    return next((p for p in prefixes if f"{p}.gate.weight" in checkpoint), prefixes[0])


class ExpertReader:
    def __init__(self, checkpoint: Checkpoint, architecture: Architecture) -> None:
        self._checkpoint = checkpoint
        self._spec = architecture.spec
        self._names = RUNNABLE[architecture.spec.family].expert_names
        self._prefixes = [
            f"{moe_prefix(checkpoint, architecture, layer)}.experts"
            for layer in self._spec.moe_layers
        ]

    def __iter__(self) -> Iterator[tuple[ExpertId, ExpertWeights]]:
        """All of them, layer by layer; each is the caller's, nothing is kept."""
        for layer in range(self._spec.num_moe_layers):
            for expert in range(self._spec.num_experts):
                yield (which := ExpertId(layer, expert)), self.read(which)

    def read(self, which: ExpertId) -> ExpertWeights:
        """As stored: converting is the packing's business."""
        if self._is_stacked(which.layer):
            gate_up, down = self._stacks(which.layer)
            both = self._checkpoint.read_part(*gate_up, which.expert)
            gate, up = both.chunk(2)
            return ExpertWeights(gate, up, self._checkpoint.read_part(*down, which.expert))
        gate, up, down = (self._checkpoint.read(*matrix) for matrix in self._matrices(which))
        return ExpertWeights(gate, up, down)

    def check(self) -> None:
        """Every expert is there with the right shape; or BadCheckpoint. Reads no weights."""
        for layer in range(self._spec.num_moe_layers):
            if self._is_stacked(layer):
                expected = self._stacks(layer)
            else:
                every = (ExpertId(layer, expert) for expert in range(self._spec.num_experts))
                expected = [matrix for which in every for matrix in self._matrices(which)]
            for name, shape in expected:
                self._checkpoint.expect(name, shape)

    def _is_stacked(self, layer: int) -> bool:
        return f"{self._prefixes[layer]}.gate_up_proj" in self._checkpoint

    def _stacks(self, layer: int) -> list[tuple[str, tuple[int, ...]]]:
        spec, prefix = self._spec, self._prefixes[layer]
        hidden, inner, count = spec.hidden_size, spec.expert_intermediate, spec.num_experts
        return [
            (f"{prefix}.gate_up_proj", (count, 2 * inner, hidden)),
            (f"{prefix}.down_proj", (count, hidden, inner)),
        ]

    def _matrices(self, which: ExpertId) -> list[tuple[str, tuple[int, ...]]]:
        wide = (self._spec.expert_intermediate, self._spec.hidden_size)
        shapes = (wide, wide, wide[::-1])
        prefix = f"{self._prefixes[which.layer]}.{which.expert}"
        named = zip(self._names, shapes, strict=True)
        return [(f"{prefix}.{name}.weight", shape) for name, shape in named]
