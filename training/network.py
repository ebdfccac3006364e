"""The network to train: OLMoE's arithmetic with experts stacked and computed in groups.

Weights are fp32; products are computed in `compute_dtype`, the residual stream stays fp32, as
under autocast. tests/training holds it against transformers' OlmoeForCausalLM.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from training.attention import Attention, Look
from training.products import Product, looped
from training.recipe import Shape
from training.routing import Combine, Dispatch, lay_out

_EMBEDDING_SIZE = (
    0.02  # standard deviation; being tied, larger embeddings predict themselves at first
)


class Routing(NamedTuple):
    """What a layer's router said, for the losses that keep it in shape."""

    scores: torch.Tensor  # [tokens, experts], fp32, before softmax
    chosen: torch.Tensor  # [tokens, k]


class Norm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        wide = values.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight.to(dtype) * (wide * scale).to(dtype)


class SelfAttention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Parameter(_matrix(3, shape.hidden, shape.hidden))
        self.out = nn.Parameter(torch.zeros(shape.hidden, shape.hidden))
        self.q_norm = Norm(shape.hidden, shape.norm_eps)
        self.k_norm = Norm(shape.hidden, shape.norm_eps)

    def forward(self, hidden: torch.Tensor, rotation: torch.Tensor, look: Look) -> torch.Tensor:
        dtype, heads = hidden.dtype, (self.heads, -1)
        projected = functional.linear(hidden, self.qkv.flatten(0, 1).to(dtype))
        queries, keys, values = projected.chunk(3, dim=-1)
        queries = _rotate(self.q_norm(queries, dtype).unflatten(-1, heads), rotation)
        keys = _rotate(self.k_norm(keys, dtype).unflatten(-1, heads), rotation)
        mixed = look.attend(queries, keys, values.unflatten(-1, heads))
        return functional.linear(mixed.flatten(-2), self.out.to(dtype))


class Experts(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, self.top_k, self.product = shape, shape.top_k, looped
        self.router = nn.Parameter(_matrix(shape.experts, shape.hidden))
        self.gate_up = nn.Parameter(_matrix(shape.experts, 2 * shape.expert_width, shape.hidden))
        self.down = nn.Parameter(torch.zeros(shape.experts, shape.hidden, shape.expert_width))

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, Routing]:
        rows, dtype = hidden.flatten(0, 1), hidden.dtype
        scores = functional.linear(rows, self.router.to(dtype)).float()
        weights, chosen = torch.topk(scores.softmax(dim=-1), self.top_k, dim=-1)
        if self.shape.normalized:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        layout = lay_out(chosen, self.shape.experts)
        slots = Dispatch.apply(rows, layout.token_of, layout.slots)
        gate, up = self.product(slots, self.gate_up.to(dtype), layout.ends).chunk(2, dim=-1)
        computed = self.product(functional.silu(gate) * up, self.down.to(dtype), layout.ends)
        mixed = Combine.apply(computed, weights.to(dtype), *layout[:4])
        return mixed.view(hidden.shape), Routing(scores, chosen)


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = Norm(shape.hidden, shape.norm_eps)
        self.attention = SelfAttention(shape)
        self.experts_norm = Norm(shape.hidden, shape.norm_eps)
        self.experts = Experts(shape)

    def forward(
        self,
        residual: torch.Tensor,
        rotation: torch.Tensor,
        look: Look,
        dtype: torch.dtype,
    ) -> tuple[torch.Tensor, Routing]:
        residual = residual + self.attention(
            self.attention_norm(residual, dtype), rotation.to(dtype), look
        )
        mixed, routing = self.experts(self.experts_norm(residual, dtype))
        return residual + mixed, routing


class Network(nn.Module):
    def __init__(self, shape: Shape, compute_dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.shape, self.compute_dtype = shape, compute_dtype
        self.embedding = nn.Parameter(torch.empty(shape.vocabulary, shape.hidden))
        nn.init.normal_(self.embedding, std=_EMBEDDING_SIZE)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden, shape.norm_eps)
        self.run_layer: Callable[..., tuple[torch.Tensor, Routing]] = _run

    def forward(
        self, tokens: torch.Tensor, attention: Attention, positions: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, list[Routing]]:
        """Hidden states [rows, length, hidden] for `logits`, and every layer's routing."""
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        rotation = _rotation(positions, self.shape)
        residual, routings = functional.embedding(tokens, self.embedding), []
        for number, layer in enumerate(self.layers):
            look = attention.at(number)
            residual, routing = self.run_layer(layer, residual, rotation, look, self.compute_dtype)
            routings.append(routing)
        return self.norm(residual, self.compute_dtype), routings

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return functional.linear(hidden, self.embedding.to(hidden.dtype))

    def compile_layers(self, compiled: bool) -> None:
        """One compiled function serves all layers: they differ in weights only."""
        self.run_layer = torch.compile(_run, dynamic=False) if compiled else _run

    def use_product(self, product: Product) -> None:
        for layer in self.layers:
            layer.experts.product = product

    @property
    def top_k(self) -> int:
        return int(self.layers[0].experts.top_k)

    def use_top_k(self, top_k: int) -> None:
        """Fewer experts per token than it was trained with, or as many again."""
        for layer in self.layers:
            layer.experts.top_k = top_k


def _run(layer: Layer, *arguments: Any) -> tuple[torch.Tensor, Routing]:
    result: tuple[torch.Tensor, Routing] = layer(*arguments)
    return result


def _matrix(*shape: int) -> torch.Tensor:
    """Keeps the size of what it is given. (Matrices that write to the residual stream begin as
    zeros: at first, a token is what its embedding says.)"""
    return torch.randn(shape) * shape[-1] ** -0.5


def _rotation(positions: torch.Tensor, shape: Shape) -> torch.Tensor:
    """[2, rows, length, 1, width]: cosine and sine."""
    width = shape.hidden // shape.heads
    places = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32)
    angles = positions.float().unsqueeze(-1) * shape.rope_theta ** (-places / width)
    both = torch.cat((angles, angles), dim=-1).unsqueeze(-2)
    return torch.stack((both.cos(), both.sin()))


def _rotate(values: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    first, second = values.chunk(2, dim=-1)
    return values * rotation[0] + torch.cat((-second, first), dim=-1) * rotation[1]
