"""Many answers at once with the network at hand: greedy, or drawn where a temperature is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from training.attention import masked_attention
from training.network import Network
from training.tokenizer import END_ID

# Not cuDNN's attention: it recompiles for every length, and here each step has another.
_QUICK_TO_START = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
_LOOK_EVERY = 8  # steps between questions whether all are done: each waits for the device


@dataclass(slots=True)
class _Memory:
    """Keys and values of all layers, and which of them count; rows are aligned at their ends."""

    keys: torch.Tensor  # [layers, rows, length, heads, width]
    values: torch.Tensor
    real: torch.Tensor  # [rows, length]: not filling
    mask: torch.Tensor  # [rows, 1, adding, end]: what this step's tokens see
    length: int = 0
    end: int = 0  # with this step's tokens

    def at(self, layer: int) -> _LayerMemory:
        return _LayerMemory(self, layer)

    def add(self, tokens: int) -> torch.Tensor:
        """Extend the cache; the new tokens' positions."""
        self.length, self.end = self.end, self.end + tokens
        places = torch.arange(self.end, device=self.real.device)
        new = places[self.length :]
        earlier = places.unsqueeze(0) <= new.unsqueeze(1)
        # Filling sees itself, since it must see something; other tokens do not see it.
        own = places.unsqueeze(0) == new.unsqueeze(1)
        self.mask = ((earlier & self.real[:, None, : self.end]) | own).unsqueeze(1)
        return new


@dataclass(slots=True)
class _LayerMemory:
    memory: _Memory
    layer: int

    def attend(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        memory, layer, end = self.memory, self.layer, self.memory.end
        memory.keys[layer, :, memory.length : end] = keys
        memory.values[layer, :, memory.length : end] = values
        known = memory.keys[layer, :, :end], memory.values[layer, :, :end]
        return masked_attention(queries, *known, memory.mask)


@torch.no_grad()
def continue_texts(
    network: Network,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
) -> list[list[int]]:
    """What follows each prompt, up to the end of the text, which is left out."""
    device = network.embedding.device
    longest = max(len(prompt) for prompt in prompts)
    filled = [[END_ID] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    tokens = torch.tensor(filled, device=device)
    fill = torch.tensor([longest - len(prompt) for prompt in prompts], device=device)
    memory = _new_memory(network, len(prompts), longest + new_tokens)
    memory.real[:] = torch.arange(longest + new_tokens, device=device) >= fill.unsqueeze(1)
    random = torch.Generator(device).manual_seed(seed)
    written: list[torch.Tensor] = []
    done = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    for number in range(new_tokens):
        with sdpa_kernel(_QUICK_TO_START):
            logits = _last_logits(network, tokens, memory)
        tokens = _choose(logits, temperature, random)
        written.append(tokens)
        done |= tokens.squeeze(1) == END_ID
        if number % _LOOK_EVERY == _LOOK_EVERY - 1 and bool(done.all()):
            break
    return [_until_end(row) for row in torch.cat(written, dim=1).tolist()]


def _new_memory(network: Network, rows: int, length: int) -> _Memory:
    shape, device = network.shape, network.embedding.device
    size = (shape.layers, rows, length, shape.heads, shape.hidden // shape.heads)
    keys = torch.zeros(size, dtype=network.compute_dtype, device=device)
    real = torch.ones(rows, length, dtype=torch.bool, device=device)
    return _Memory(keys, torch.zeros_like(keys), real, mask=real)


def _last_logits(network: Network, tokens: torch.Tensor, memory: _Memory) -> torch.Tensor:
    positions = memory.add(tokens.shape[1])
    hidden, _ = network(tokens, memory, positions.unsqueeze(0))
    return network.logits(hidden[:, -1]).float()


def _choose(logits: torch.Tensor, temperature: float, random: torch.Generator) -> torch.Tensor:
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    return torch.multinomial((logits / temperature).softmax(dim=-1), 1, generator=random)


def _until_end(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(END_ID)] if END_ID in tokens else tokens
