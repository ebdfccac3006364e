"""Linear attention: a gated delta net behind a short convolution over time (Qwen3-Next)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from moesaic.model_info.network import LinearAttentionSpec
from moesaic.models.attentions.delta_rule import DeltaInputs, delta_rule
from moesaic.models.attentions.recurrent_buffer import Inputs, State
from moesaic.models.linear import Linear
from moesaic.models.norm import RmsNorm
from moesaic.models.token_batch import TokenBatch

_TINY = 1e-6  # added to a key's squared length, whatever the config says


@dataclass(frozen=True, slots=True)
class LinearAttention:
    spec: LinearAttentionSpec
    layer: int  # of the decoder
    mix: Linear  # to queries, keys and values
    gate: Linear  # of the result
    rates: Linear  # to logits of learning and of forgetting, one of each per value head
    kernel: torch.Tensor  # of the convolution, fp32 [tokens, channels]: the newest last
    decay: torch.Tensor  # fp32 [value heads], below 0
    decay_bias: torch.Tensor  # fp32 [value heads]
    norm: RmsNorm  # of a head's result
    output: Linear

    def __call__(self, x: torch.Tensor, step: TokenBatch) -> torch.Tensor:
        inputs = Inputs(self.mix(x), self.rates(x))
        for rows in inputs:  # gates hide infinite ones
            step.watch(rows)
        buffer = step.cache.states(self.layer)
        results = [
            buffer.extend(slot, step.cache.length(slot), inputs.part(rows), self.advance)
            for slot, rows in step.spans
        ]
        mixed = torch.cat(results).to(x.dtype)
        gate = self.gate(x)
        step.watch(gate)
        gate = gate.unflatten(-1, (self.spec.sizes.value_heads, -1)).float()
        gated = (self.norm(mixed) * functional.silu(gate)).to(x.dtype)
        return self.output(gated.flatten(1))

    def advance(self, state: State, inputs: Inputs, into: State) -> torch.Tensor:
        """See `recurrent_buffer.Advance`."""
        rows = torch.cat((state.window, inputs.rows))
        prepared = self._prepared(self._convolved(rows, len(inputs.rows)), inputs.rates)
        results = delta_rule(prepared, state.matrix, into.matrix)
        into.window.copy_(rows[len(inputs.rows) :])
        return results.transpose(0, 1)

    def _convolved(self, rows: torch.Tensor, tokens: int) -> torch.Tensor:
        """Every channel by itself, over the last few tokens."""
        wide = rows.float()
        total = wide[:tokens] * self.kernel[0]
        for tap in range(1, len(self.kernel)):
            total.addcmul_(wide[tap : tap + tokens], self.kernel[tap])
        return functional.silu(total)

    def _prepared(self, rows: torch.Tensor, rates: torch.Tensor) -> DeltaInputs:
        shape = self.spec.sizes
        keys = shape.key_heads * shape.key_dim
        parts = rows.split((keys, keys, shape.value_width), dim=-1)
        query, key = (self._unit(part) for part in parts[:2])
        value = parts[2].unflatten(-1, (shape.value_heads, -1)).transpose(0, 1)
        learning, forgetting = rates.float().T.chunk(2)
        decay = functional.softplus(forgetting + self.decay_bias[:, None])
        decay = decay * self.decay[:, None]
        scaled = query * shape.key_dim**-0.5
        return DeltaInputs(scaled, key, value, decay, learning.sigmoid())

    def _unit(self, rows: torch.Tensor) -> torch.Tensor:
        """Of length 1, and repeated for the value heads that share them."""
        sizes = self.spec.sizes
        heads = rows.unflatten(-1, (sizes.key_heads, -1)).transpose(0, 1)
        unit = heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + _TINY)
        return unit.repeat_interleave(sizes.value_heads // sizes.key_heads, dim=0)
