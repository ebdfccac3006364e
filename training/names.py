"""The network's weights under the names that published OLMoE checkpoints use, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from training.recipe import Shape

_ATTENTION = "qkv"
_SAME = {  # within a layer
    "attention_norm.weight": "input_layernorm.weight",
    "attention.q_norm.weight": "self_attn.q_norm.weight",
    "attention.k_norm.weight": "self_attn.k_norm.weight",
    "attention.out": "self_attn.o_proj.weight",
    "experts_norm.weight": "post_attention_layernorm.weight",
    "experts.router": "mlp.gate.weight",
}


def stock_weights(
    shape: Shape, weights: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    """One tensor per expert and matrix. The head is the embedding."""
    yield "model.embed_tokens.weight", weights["embedding"]
    yield "model.norm.weight", weights["norm.weight"]
    for layer in range(shape.layers):
        ours, theirs = f"layers.{layer}.", f"model.layers.{layer}."
        for mine, stock in _SAME.items():
            yield theirs + stock, weights[ours + mine]
        for letter, matrix in zip(_ATTENTION, weights[f"{ours}attention.qkv"], strict=True):
            yield f"{theirs}self_attn.{letter}_proj.weight", matrix
        for expert in range(shape.experts):
            gate, up = weights[f"{ours}experts.gate_up"][expert].chunk(2)
            place = f"{theirs}mlp.experts.{expert}"
            yield f"{place}.gate_proj.weight", gate
            yield f"{place}.up_proj.weight", up
            yield f"{place}.down_proj.weight", weights[f"{ours}experts.down"][expert]


def own_weights(shape: Shape, stock: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    made = {
        "embedding": stock["model.embed_tokens.weight"],
        "norm.weight": stock["model.norm.weight"],
    }
    for layer in range(shape.layers):
        ours, theirs = f"layers.{layer}.", f"model.layers.{layer}."
        for mine, name in _SAME.items():
            made[ours + mine] = stock[theirs + name]
        made[f"{ours}attention.qkv"] = torch.stack(
            [stock[f"{theirs}self_attn.{letter}_proj.weight"] for letter in _ATTENTION]
        )
        gate, up, down = (
            torch.stack(
                [
                    stock[f"{theirs}mlp.experts.{expert}.{kind}_proj.weight"]
                    for expert in range(shape.experts)
                ]
            )
            for kind in ("gate", "up", "down")
        )
        made[f"{ours}experts.gate_up"] = torch.cat((gate, up), dim=1)
        made[f"{ours}experts.down"] = down
    return made
