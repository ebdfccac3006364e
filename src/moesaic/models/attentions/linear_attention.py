"""Linear attention: a gated delta net behind a short convolution over time (Qwen3-Next)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional

from moesaic.model_info.linear_attention import CHUNK, LinearAttentionSizes
from moesaic.model_info.network import LinearAttentionSpec
from moesaic.models.attentions.recurrent_buffer import Inputs, State
from moesaic.models.checkpoints.joined_rows import learning_and_forgetting, mixed_and_gate
from moesaic.models.checkpoints.tensor_sources import TensorSource
from moesaic.models.linear import Linear
from moesaic.models.norm import RmsNorm
from moesaic.models.token_batch import TokenBatch

if TYPE_CHECKING:
    from moesaic.kernels.native_linear import DenseRunner
    from moesaic.kernels.quantized_linear import DenseQuantizer


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
        """Rows of length 1, repeated for the value heads that share them."""
        sizes = self.spec.sizes
        heads = rows.unflatten(-1, (sizes.key_heads, -1)).transpose(0, 1)
        unit = heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + _TINY)
        return unit.repeat_interleave(sizes.value_heads // sizes.key_heads, dim=0)


# The gated delta rule (Gated DeltaNet): a matrix per head that forgets, and learns keys' values.
# For one token with key k, value v, query q, log of the decay g and learning rate b, the state S
# [key, value] of a head becomes
#
#     S <- exp(g) S;   S <- S + k (b (v - k S));   result: q S
#
# so a key's old value is replaced instead of added to. `recurrent` does that token by token.
# `chunked` solves it for a chunk of tokens at once: what the tokens change of each other's values
# is a triangular system, whose right-hand side needs the state at the chunk's beginning only. Both
# are in fp32, both write the new state into a tensor that may be the old one's.


class DeltaInputs(NamedTuple):
    """The inputs of one sequence, in fp32; queries and keys are normalised, queries scaled."""

    query: torch.Tensor  # [heads, tokens, key]
    key: torch.Tensor  # [heads, tokens, key]
    value: torch.Tensor  # [heads, tokens, value]
    decay: torch.Tensor  # logarithms, [heads, tokens]
    rate: torch.Tensor  # [heads, tokens]

    @property
    def tokens(self) -> int:
        return int(self.key.shape[1])

    def part(self, tokens: slice) -> DeltaInputs:
        return DeltaInputs(*(each[:, tokens] for each in self))


def delta_rule(inputs: DeltaInputs, state: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
    """Results [heads, tokens, value]; the state [heads, key, value] after the last token is in
    `into`, which may be `state`."""
    if inputs.tokens == 1:
        return recurrent(inputs, state, into)
    return chunked(inputs, state, into)


def recurrent(inputs: DeltaInputs, state: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
    if into is not state:
        into.copy_(state)
    results = []
    for at in range(inputs.tokens):
        query, key, value, decay, rate = inputs.part(slice(at, at + 1))
        into.mul_(decay.exp()[..., None])
        change = (value - key @ into) * rate[..., None]
        into.baddbmm_(key.transpose(1, 2), change)
        results.append(query @ into)
    return torch.cat(results, dim=1)


def chunked(inputs: DeltaInputs, state: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
    tokens, size = inputs.tokens, min(CHUNK, inputs.tokens)
    query, key, value, decay, rate = (_in_chunks(each, size) for each in inputs)
    total = decay.cumsum(-1)  # since the chunk's beginning: [heads, chunks, size]
    since = total[..., :, None] - total[..., None, :]  # what token j has decayed to at token i
    later = torch.ones(size, size, dtype=torch.bool, device=key.device).triu(1)
    since = since.masked_fill_(later, float("-inf")).exp_()
    learned, turned = key * rate[..., None], _turned(key)
    system = (learned @ turned).mul_(since)  # below the diagonal; there, 1
    right = torch.cat((value * rate[..., None], learned * total.exp()[..., None]), dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    values, keys = solved.split((value.shape[-1], key.shape[-1]), dim=-1)
    among = (query @ turned).mul_(since)
    query = query * total.exp()[..., None]
    key = _turned(key * (total[..., -1:] - total).exp()[..., None])
    kept = total[..., -1].exp()[..., None, None]
    results = []
    for chunk in range(key.shape[1]):
        change = torch.baddbmm(values[:, chunk], keys[:, chunk], state, alpha=-1)
        results.append(torch.baddbmm(query[:, chunk] @ state, among[:, chunk], change))
        state = torch.baddbmm(state * kept[:, chunk], key[:, chunk], change)
    into.copy_(state)
    return torch.cat(results, dim=1)[:, :tokens]


def _turned(rows: torch.Tensor) -> torch.Tensor:
    """Transpose in memory too: stacked products with a mere view take ten times as long on some
    CPUs."""
    return rows.transpose(-1, -2).contiguous()


def _in_chunks(rows: torch.Tensor, size: int) -> torch.Tensor:
    """[heads, tokens, ...] to [heads, chunks, size, ...]. Tokens that are filled up with learn
    nothing and forget nothing."""
    missing = -rows.shape[1] % size
    if missing:
        rows = functional.pad(rows, (*(0, 0) * (rows.dim() - 2), 0, missing))
    return rows.unflatten(1, (-1, size))


# Puts a layer of linear attention together from named tensors.


def build_linear_attention(
    spec: LinearAttentionSpec,
    number: int,
    prefix: str,
    hidden: int,
    split_inputs: bool,
    source: TensorSource,
    dense: DenseRunner | DenseQuantizer | None,
) -> LinearAttention:
    """`split_inputs`: the files have a matrix for each kind of input, one after the other."""
    shape = spec.sizes
    heads, values = shape.value_heads, shape.value_width
    if split_inputs:
        mix, gate, rates = _separate(source, prefix, shape, hidden)
    else:
        mix, gate, rates = _joined(source, prefix, shape, hidden)
    kernel = source.tensor(
        f"{prefix}.conv1d.weight", shape.channels, 1, shape.conv_kernel, dtype=torch.float32
    )
    decay = source.tensor(f"{prefix}.A_log", heads, dtype=torch.float32)
    bias = source.tensor(f"{prefix}.dt_bias", heads, dtype=torch.float32)
    norm = source.tensor(f"{prefix}.norm.weight", shape.value_dim)
    output = source.tensor(f"{prefix}.out_proj.weight", hidden, values)
    return LinearAttention(
        spec=spec,
        layer=number,
        mix=Linear.made(mix, None, dense),
        gate=Linear.made(gate, None, dense),
        rates=Linear(rates),  # few rows, and everything later depends on them: never packed
        kernel=kernel[:, 0].T.contiguous(),
        # Plus 0, or NaN where the exponential would hide that one is infinite.
        decay=0.0 * decay - decay.exp(),
        decay_bias=bias + 0.0 * bias,
        norm=RmsNorm(norm, spec.norm_eps),
        output=Linear.made(output, None, dense),
    )


def _joined(
    source: TensorSource, prefix: str, shape: LinearAttentionSizes, hidden: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs of the convolution, the result's gates, and rates."""
    both = shape.channels + shape.value_width
    joined = source.tensor(f"{prefix}.in_proj_qkvz.weight", both, hidden)
    rates = source.tensor(f"{prefix}.in_proj_ba.weight", 2 * shape.value_heads, hidden)
    return *mixed_and_gate(joined, shape), learning_and_forgetting(rates, shape)


def _separate(
    source: TensorSource, prefix: str, shape: LinearAttentionSizes, hidden: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    mix = source.tensor(f"{prefix}.in_proj_qkv.weight", shape.channels, hidden)
    gate = source.tensor(f"{prefix}.in_proj_z.weight", shape.value_width, hidden)
    names = (f"{prefix}.in_proj_{rate}.weight" for rate in ("b", "a"))
    rates = torch.cat([source.tensor(name, shape.value_heads, hidden) for name in names])
    return mix, gate, rates
