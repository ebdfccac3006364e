"""The gated delta rule (Gated DeltaNet): a matrix per head that forgets, and learns keys' values.

For one token with key k, value v, query q, log of the decay g and learning rate b, the state S
[key, value] of a head becomes

    S <- exp(g) S;   S <- S + k (b (v - k S));   result: q S

so a key's old value is replaced instead of added to. `recurrent` does that token by token.
`chunked` solves it for a chunk of tokens at once: what the tokens change of each other's values is
a triangular system, whose right-hand side needs the state at the chunk's beginning only. Both are
in fp32, both write the new state into a tensor that may be the old one's.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional

from moesaic.model_info.linear_attention import CHUNK


class DeltaInputs(NamedTuple):
    """Of one sequence, in fp32; queries and keys are normalised, queries scaled."""

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
    """In memory too: stacked products with a mere view take ten times as long on some CPUs."""
    return rows.transpose(-1, -2).contiguous()


def _in_chunks(rows: torch.Tensor, size: int) -> torch.Tensor:
    """[heads, tokens, ...] to [heads, chunks, size, ...]. Tokens that are filled up with learn
    nothing and forget nothing."""
    missing = -rows.shape[1] % size
    if missing:
        rows = functional.pad(rows, (*(0, 0) * (rows.dim() - 2), 0, missing))
    return rows.unflatten(1, (-1, size))
