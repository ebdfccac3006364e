"""The routed experts of a checkpoint, one at a time, in either layout.

Published files have three matrices per expert (`experts.7.gate_proj.weight`); newer libraries
may save a layer's experts stacked: `experts.gate_up_proj` [experts, 2 * intermediate, hidden] and
`experts.down_proj` [experts, hidden, intermediate]. gpt-oss has stacks only, of transposed
matrices: `gate_up_proj` [experts, hidden, 2 * intermediate] with columns of gate and up in turn,
`down_proj` [experts, intermediate, hidden], and their biases.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from moesaic.core.routing import ExpertId
from moesaic.kernels.base import ExpertBiases, ExpertWeights
from moesaic.models.checkpoints.named_tensors import NamedTensors
from moesaic.models.configs.architecture import Architecture
from moesaic.models.configs.families import RUNNABLE
from moesaic.models.configs.moe_names import MoeNames, moe_names

Named = tuple[str, tuple[int, ...]]  # a tensor and its shape


def names_in(checkpoint: NamedTensors, architecture: Architecture, layer: int) -> MoeNames:
    """The names of a decoder layer's routed block."""
    return moe_names(checkpoint, RUNNABLE[architecture.spec.family].layouts, layer)


class ExpertReader:
    def __init__(self, checkpoint: NamedTensors, architecture: Architecture) -> None:
        self._checkpoint = checkpoint
        self._spec = architecture.spec
        family = RUNNABLE[architecture.spec.family]
        self._names, self._interleaved = family.expert_names, family.columns_interleaved
        self._layers = [
            names_in(checkpoint, architecture, layer) for layer in self._spec.moe_layers
        ]

    def __iter__(self) -> Iterator[tuple[ExpertId, ExpertWeights]]:
        """All of them, layer by layer; each is the caller's, nothing is kept."""
        for layer in range(self._spec.num_moe_layers):
            for expert in range(self._spec.num_experts):
                yield (which := ExpertId(layer, expert)), self.read(which)

    def read(self, which: ExpertId) -> ExpertWeights:
        """The weights as stored; packing converts them."""
        if self._is_stacked(which.layer):
            return self._of_stacks(which)
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
        return self._interleaved or self._layers[layer].stacks[0] in self._checkpoint

    def _of_stacks(self, which: ExpertId) -> ExpertWeights:
        stacks = self._stacks(which.layer)
        parts = [self._checkpoint.read_part(*stack, which.expert) for stack in stacks]
        both, down = parts[:2]
        if self._interleaved:
            both, down = both.T, down.T
        gate, up = self._halves(both)
        if not self._spec.expert_bias:
            return ExpertWeights(gate, up, down)
        return ExpertWeights(gate, up, down, ExpertBiases(*self._halves(parts[2]), parts[3]))

    def _halves(self, both: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of gate and up."""
        if self._interleaved:
            return both[::2], both[1::2]
        gate, up = both.chunk(2)
        return gate, up

    def _stacks(self, layer: int) -> list[Named]:
        spec, (gate_up, down) = self._spec, self._layers[layer].stacks
        hidden, inner, count = spec.hidden_size, spec.expert_intermediate, spec.num_experts
        wide, narrow = (2 * inner, hidden), (hidden, inner)
        if self._interleaved:
            wide, narrow = wide[::-1], narrow[::-1]
        stacks: list[Named] = [(gate_up, (count, *wide)), (down, (count, *narrow))]
        if spec.expert_bias:
            stacks += [(f"{gate_up}_bias", (count, 2 * inner)), (f"{down}_bias", (count, hidden))]
        return stacks

    def _matrices(self, which: ExpertId) -> list[Named]:
        wide = (self._spec.expert_intermediate, self._spec.hidden_size)
        shapes = (wide, wide, wide[::-1])
        prefix = f"{self._layers[which.layer].block}.experts.{which.expert}"
        named = zip(self._names, shapes, strict=True)
        return [(f"{prefix}.{name}.weight", shape) for name, shape in named]
